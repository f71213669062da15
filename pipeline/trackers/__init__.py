"""Experiment trackers, one per file. Plugins add more through the entry-point group `pipeline.trackers`, and
a project through its folder `plugins/trackers/`.
"""

from __future__ import annotations

import os
from pathlib import Path

from pfl.core.registry import Registry, only_class
from pfl.run.trials import Record
from pipeline.store.results import CellResult

DEFAULT = "mlflow"
OFF = "none"


class Tracker:
    """Receives the finished runs, cells and reports of one table.

    A sweep uses it in a separate thread, and `pfl track` uses it afterwards. Every method may raise any
    error. The sweep then continues, and later passes the same entry to a new tracker. The next sweep of the
    table passes everything again, so a tracker checks which entries it already has.

    Args:
        root: the project's root folder.
        table: the table's id.
    """

    def __init__(self, root: Path, table: str):
        self.root = root
        self.table = table

    @staticmethod
    def check() -> None:
        """Check the configuration of the tracker before any compute.

        Raises:
            InvalidInput: it cannot work.
        """

    def run(self, cell: str, record: Record, trial: int | None) -> None:
        """Called when a run has finished.

        Args:
            cell: "<setting>/<row>" in this table; the record itself may come from another table.
            record: its configuration, seed and numbers. Records with the same key have the same numbers.
            trial: number of the search trial, 0 for the pinned configuration; None without a search.
        """

    def cell(self, result: CellResult) -> None:
        """Called when all runs of a cell have finished."""

    def report(self, folder: Path) -> str:
        """Called when the report is in ``folder``; return a line that tells the user where to look, or ""."""
        return ""


TRACKERS: Registry[type[Tracker]] = Registry("tracker", "pipeline.trackers", only_class(Tracker))


def tracker_name() -> str:
    """The name of the tracker in use, which the environment variable PFL_TRACKER sets."""
    return os.environ.get("PFL_TRACKER") or DEFAULT
