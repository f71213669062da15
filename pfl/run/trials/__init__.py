"""Trials: simulations with a key, run anywhere, and their records."""

from pfl.engine.metrics import json_ready
from pfl.engine.result import Hardware, Result, Versions, hardware, versions
from pfl.run.errors import cause_of, trace_of
from pfl.run.sources import Sources, commit, edits, git, knows, plugins
from pfl.run.trials.record import Record, checked, checksum_of, split_checksum, with_checksum
from pfl.run.trials.running import run_trial, run_trials
from pfl.run.trials.trial import Trial, folder_of, trial_key

__all__ = [
    "Hardware",
    "Record",
    "Result",
    "Sources",
    "Trial",
    "Versions",
    "cause_of",
    "checked",
    "checksum_of",
    "commit",
    "edits",
    "folder_of",
    "git",
    "hardware",
    "json_ready",
    "knows",
    "plugins",
    "run_trial",
    "run_trials",
    "split_checksum",
    "trace_of",
    "trial_key",
    "versions",
    "with_checksum",
]
