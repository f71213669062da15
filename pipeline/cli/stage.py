"""The stages of dvc.yaml, as commands of ``pfl stage``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from pfl.core.errors import InvalidInput


def matching_tables(incomplete: str) -> list[str]:
    """Tab completion by the names of the tables."""
    from pipeline.spec.paths import table_names

    try:
        return [name for name in table_names() if name.startswith(incomplete)]
    except InvalidInput:  # no tables
        return []


def some_tables(default: str) -> Any:
    """An argument that names any number of tables; ``default`` is its help text."""
    return typer.Argument(metavar="[TABLE]...", help=default, autocompletion=matching_tables)


TableName = Annotated[
    str, typer.Argument(metavar="TABLE", help="See `pfl tables`.", autocompletion=matching_tables)
]


def check() -> None:
    """Check the selected tables before all other stages."""
    from pfl.run.sources import edits
    from pipeline.spec.params import PARAMS
    from pipeline.sweep import preparation

    try:
        preparation.check()
    except InvalidInput:
        # `dvc exp run -S` has written to the file, and DVC restores it only if the command itself is invalid.
        if "DVC_EXP_BASELINE_REV" in os.environ and edits(Path(), PARAMS):
            print(f"pfl: `git restore {PARAMS}` undoes the options -S", file=sys.stderr)
        raise


def download(table: TableName) -> None:
    """Fetch and decode the data sets."""
    from pipeline.sweep import preparation

    preparation.download(table)


def partition(table: TableName) -> None:
    """Partition the data across the clients."""
    from pipeline.sweep import preparation

    preparation.partition(table)


def sweep(table: TableName) -> None:
    """Run every cell, with its search.

    If runs failed, the stage also writes the report and exits with status 1. DVC then runs no later stage of
    this table, and the next `dvc repro` retries the failed runs.
    """
    from pipeline.sweep.train_sweep import sweep

    if failed := sweep(table):
        report(table)
        print(f"pfl: error: {table}: {failed}", file=sys.stderr)
        raise typer.Exit(1)


def report(table: TableName) -> None:
    """Write the report to results/TABLE/report/."""
    from pipeline.report.table_report import write_report
    from pipeline.sweep.tracking import track_report

    folder = write_report(table)
    print(f"report: {folder}/README.md and index.html", flush=True)
    if line := track_report(table, folder):
        print(line)
