"""How far trials under way are: each leaves its round beside its checkpoint, for the sweep to show."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pfl.trials import Trial
from pipeline.store.workspace import checkpoint_folder

if TYPE_CHECKING:
    from pfl.engine.simulation import OnRound

SECONDS_BETWEEN = 1.0  # that a worker lets pass before it tells of another round


def heartbeat_writer(trials: Sequence[Trial]) -> OnRound:
    """For the simulation of the trials of one stack: leaves their round, about every second."""
    file = _file(trials)
    told = float("-inf")

    def tell(round: int, *_: object) -> None:
        nonlocal told
        if time.monotonic() - told < SECONDS_BETWEEN:
            return
        told = time.monotonic()
        with suppress(OSError):  # nothing depends on it
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(str(round), encoding="ascii")

    return tell


def reached(trials: Sequence[Trial]) -> int:
    """The round of the trials of one stack; 0: none has ended yet."""
    try:
        return int(_file(trials).read_text(encoding="ascii"))
    except (OSError, ValueError):  # not there yet, or just being written
        return 0


def _file(trials: Sequence[Trial]) -> Path:
    return checkpoint_folder(*trials) / "round"
