"""The sources that a sweep runs on, and where it keeps what is under way."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pfl.trials import Trial, commit, folder_of

SCRATCH = Path(".sweeps")
"""What is under way: untracked, and of no interest once a sweep has ended, except for the
ledger and the models that a table keeps."""

MODELS = SCRATCH / "models"
"""The final models of trials, by their keys, of tables that keep them."""


def checkpoints_of(table: str) -> Path:
    """Where the trials of a table that are under way have their checkpoints."""
    return SCRATCH / "trials" / table


def checkpoint_folder(*trials: Trial) -> Path:
    """Of the trials of one stack; another for every edit of the sources, which may have moved numbers."""
    code = commit()
    edit = f"-{code['sources'][:16]}" if code["dirty"] else ""
    return checkpoints_of(trials[0].table) / f"{folder_of(*trials)}{edit}"


def models_file(key: str) -> Path:
    return MODELS / f"{key}.pt"


@dataclass(frozen=True)
class Sources:
    """The code whose numbers a row holds, as in `pfl.trials.commit`."""

    commit: str
    dirty: bool
    sources: str

    @classmethod
    def current(cls) -> Sources:
        return cls(**commit())

    def stamp(self, row: dict[str, Any]) -> dict[str, Any]:
        """``row``, said to be of these sources."""
        return {**row, **asdict(self)}

    def vouch_for(self, row: dict[str, Any]) -> bool:
        """Whether ``row`` may stand for a run of these sources.

        The numerics versions in a row's key speak for committed code. An edited tree may have moved numbers
        without a new version, so its rows count only for the very same files.
        """
        return not row["dirty"] or row["sources"] == self.sources
