"""The sources that a sweep runs on, and where it keeps what is under way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pfl.trials import Sources, Trial, commit, folder_of, knows
from pipeline.spec.files import table_file

SCRATCH = Path(".sweeps")
"""What is under way: untracked, and of no interest once a sweep has ended, except for the
ledger and the models that a table keeps."""

MODELS = SCRATCH / "models"
"""The final models of trials, by their keys, of tables that keep them."""


def checkpoints_of(table: str) -> Path:
    """Where the trials of a table that are under way have their checkpoints."""
    return SCRATCH / "trials" / table


def checkpoint_folder(*trials: Trial) -> Path:
    """Of the trials of one stack."""
    return checkpoints_of(trials[0].table) / folder_of(*trials)


def models_file(key: str) -> Path:
    return MODELS / f"{key}.pt"


def current_sources(table: str | None = None) -> Sources:
    """The code that is running; ``dirty`` too where git does not know the file of ``table``, or a figure."""
    code = commit()
    return replace(code, dirty=code.dirty or bool(table and not knows(Path(), str(table_file(table)))))
