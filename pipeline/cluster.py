"""Ray Tune, which runs an agenda's trials side by side."""

from __future__ import annotations

import json
import logging
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.agenda import Agenda
from pipeline.config import Resources

GPU_SHARE = 0.25
"""Of a trial whose table leaves it to us: small networks leave most of a GPU idle."""

FOREVER = "1000000000"

ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C raises here, and the trials' own checkpoints do the rest
    "TUNE_GLOBAL_CHECKPOINT_S": FOREVER,  # the ledger is what a sweep goes on from
}
