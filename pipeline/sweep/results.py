"""What a sweep leaves for the report, for `dvc metrics` and for `dvc plots`."""

from __future__ import annotations

import csv
import io
import statistics
from pathlib import Path

from pfl.files import write_json, write_text
from pfl.trials import Sources
from pipeline.spec.table import Subset, Table
from pipeline.store.json_io import load_manifest
from pipeline.store.results import Results
from pipeline.store.scores import curves as curves_of
from pipeline.store.scores import score
from pipeline.store.workspace import models_file
from pipeline.sweep.scheduler import Scheduler

FOLDER = Path("results")
STUDIES = Path("optuna.db")
"""A copy of every search, for `optuna-dashboard sqlite:///optuna.db`; nothing reads it."""


def write(
    name: str, table: Table, subset: Subset, scheduler: Scheduler, sources: Sources, seconds: float
) -> Results:
    """Write `results/<table>/` and return the content of its `results.json`.

    Args:
        table: the whole of it.
        subset: the part that ``scheduler`` consists of.
        seconds: that the sweep took.

    Raises:
        InvalidInput: a file cannot be written; what was there before is still whole.
    """
    results = Results(
        table=name,
        config=table,
        subset=subset,
        manifest=load_manifest(name),
        cells=tuple(cell.result(scheduler.outcomes) for cell in scheduler.cells),
        wall_seconds=seconds,
        trials_run=scheduler.ran,
        trials_from_ledger=scheduler.served,
        sources=sources,
    )
    pinned = [
        (cell.cell, result.pinned.rows) for cell, result in zip(scheduler.cells, results.cells, strict=True)
    ]
    folder = FOLDER / name
    write_json(folder / "results.json", results.to_json())
    for setting in table.part(subset).settings:
        scores = {cell.row: score(rows, cell.evaluation) for cell, rows in pinned if cell.setting == setting}
        means = {row: round(s.mean, 2) for row, s in scores.items() if s}
        write_json(folder / "metrics" / f"{setting}.json", means)
    curves = io.StringIO()
    writer = csv.writer(curves)
    writer.writerow(["setting", "method", "round", "accuracy"])
    for cell, rows in pinned:
        for number, accuracies in curves_of(rows, cell.evaluation):
            writer.writerow([cell.setting, cell.row, number, round(statistics.fmean(accuracies), 3)])
    write_text(folder / "curves.csv", curves.getvalue())
    if scheduler.keeps_models:
        write_text(folder / "models.csv", _models(scheduler))
    for one in scheduler.cells:
        if one.study:
            one.study.save(f"sqlite:///{STUDIES}", f"{name}: {one.cell.id}")
    return results


def _models(scheduler: Scheduler) -> str:
    """Which file has the models of which final trial, as CSV."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["setting", "row", "configuration", "seed", "file"])
    for cell in scheduler.cells:
        for name, candidate in (("pinned", cell.pinned), ("selected", cell.selected)):
            for seed, key in zip(candidate.trial.seeds, candidate.keys, strict=True) if candidate else ():
                if models_file(key).exists():
                    writer.writerow([cell.cell.setting, cell.cell.row, name, seed, models_file(key)])
    return text.getvalue()
