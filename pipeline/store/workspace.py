"""The sources of a sweep, and the folders of its unfinished work."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pfl.run.trials import Sources, Trial, commit, folder_of, knows
from pipeline.spec.extends import lineage

SCRATCH = Path(".sweeps")
"""Folder of unfinished work. It is untracked and not needed after a sweep, except for the ledger and kept
models.
"""

MODELS = SCRATCH / "models"
"""Folder of the final models of trials, by key, for tables that keep them."""


def checkpoints_of(table: str) -> Path:
    """The folder of the checkpoints of a table's unfinished trials."""
    return SCRATCH / "trials" / table


def checkpoint_folder(*trials: Trial) -> Path:
    """The folder of the checkpoints of one stack's trials."""
    return checkpoints_of(trials[0].table) / folder_of(*trials)


def models_file(key: str) -> Path:
    return MODELS / f"{key}.pt"


def current_sources(table: str | None = None) -> Sources:
    """The running code; also ``dirty`` if a file of ``table`` (or of a figure) is not committed."""
    code = commit()
    files = [str(source.file) for source in lineage(table)] if table else []
    return replace(code, dirty=code.dirty or not all(knows(Path(), file) for file in files))
