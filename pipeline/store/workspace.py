"""The sources that a sweep runs on, and the folders that it writes."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from pfl.core.errors import InvalidInput
from pfl.run.trials import Sources, Trial, commit, folder_of, knows
from pipeline.spec.extends import lineage

SCRATCH = Path(".sweeps")
"""Folder of unfinished work. It is untracked and not needed after a sweep, except for the ledger and kept
models.
"""

MODELS = SCRATCH / "models"
"""Folder of the final models of trials, by key, for tables that keep them."""

PROBE = 4096  # bytes that are written to see whether a folder takes them


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


def check_folder(parameter: str, folder: Path) -> None:
    """Check that a folder is there, or could be made, and takes files, by writing one that has no name.

    Raises:
        InvalidInput: it does not; the message has the system's reason.
    """
    try:
        there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(bytes(PROBE))
    except OSError as error:
        accepted = f"a folder that can be written ({error.strerror})"
        raise InvalidInput(parameter, str(folder), accepted) from None
