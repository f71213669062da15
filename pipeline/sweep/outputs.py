"""Write the results of a sweep for the report and for `dvc metrics`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pfl.core.files import write_text
from pfl.core.text import first_line
from pipeline.formatting import csv_text
from pipeline.spec.paths import results_folder
from pipeline.spec.table import Subset, Table
from pipeline.store.results import Results, save_results
from pipeline.store.workspace import models_file
from pipeline.sweep.scheduler import Scheduler

SEARCHES = Path("optuna.db")
"""A copy of every search, for `optuna-dashboard sqlite:///optuna.db`; nothing reads it."""


def outcome(
    name: str,
    table: Table,
    subset: Subset,
    scheduler: Scheduler,
    manifest: Mapping[str, Any],
    seconds: float = 0.0,
) -> Results:
    """A table's results so far, from its scheduler.

    Args:
        table: the whole table.
        subset: the part that was selected.
        manifest: what the download stage writes.
        seconds: duration of the sweep.
    """
    return Results(
        table=name,
        config=table,
        subset=subset,
        manifest=manifest,
        cells=tuple(cell.result(scheduler.outcomes) for cell in scheduler.cells),
        wall_seconds=seconds,
        trials_run=scheduler.ran,
        trials_from_ledger=scheduler.served,
        sources=scheduler.ledger.sources,
    )


def write(results: Results, scheduler: Scheduler) -> None:
    """Write the `outcome` of a scheduler to `results/<table>/`.

    Raises:
        InvalidInput: a file cannot be written; its previous version is then unchanged.
    """
    save_results(results, map(scheduler.ledger.line, results.records))
    if scheduler.keeps_models:
        write_text(results_folder(results.table) / "models.csv", _models(scheduler))
    _save_searches(results.table, scheduler)


def _save_searches(name: str, scheduler: Scheduler) -> None:
    """Copy the searches to a database for `optuna-dashboard`. Nothing else reads it, so a failure loses no
    result.
    """
    try:
        for cell in scheduler.cells:
            if cell.proposer:
                cell.proposer.save(f"sqlite:///{SEARCHES}", f"{name}: {cell.cell.id}")
    except Exception as error:  # the database is damaged, locked, full, or of another version of Optuna
        cause = f"{type(error).__name__}: {first_line(error)}"
        print(f"pfl: warning: {SEARCHES} could not be written ({cause})", file=sys.stderr)


def _models(scheduler: Scheduler) -> str:
    """The model file of each final trial, as CSV."""
    files = [
        (cell.cell.setting, cell.cell.row, name, seed, models_file(key))
        for cell in scheduler.cells
        for name, candidate in (("pinned", cell.pinned), ("selected", cell.selected))
        if candidate
        for seed, key in candidate.runs
        if models_file(key).exists()
    ]
    return csv_text(("setting", "row", "configuration", "seed", "file"), files)
