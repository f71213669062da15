"""Writes the results of a sweep for the report and for `dvc metrics`."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from pfl.files import write_json, write_text
from pfl.trials import Sources
from pipeline.spec.table import Subset, Table
from pipeline.store.json_io import load_manifest
from pipeline.store.results import Results
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
        seconds: duration of the sweep.

    Raises:
        InvalidInput: a file cannot be written; its previous version is then unchanged.
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
    folder = FOLDER / name
    write_json(folder / "results.json", results.to_json())
    scores = {
        one.cell.id: score(result.pinned.rows, one.cell.evaluation)
        for one, result in zip(scheduler.cells, results.cells, strict=True)
    }
    means = {cell: round(reached.mean, 2) for cell, reached in scores.items() if reached}
    write_json(folder / "metrics.json", {"table": name, **means})
    if scheduler.keeps_models:
        write_text(folder / "models.csv", _models(scheduler))
    for one in scheduler.cells:
        if one.study:
            one.study.save(f"sqlite:///{STUDIES}", f"{name}: {one.cell.id}")
    return results


def _models(scheduler: Scheduler) -> str:
    """The model file of each final trial, as CSV."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["setting", "row", "configuration", "seed", "file"])
    for cell in scheduler.cells:
        for name, candidate in (("pinned", cell.pinned), ("selected", cell.selected)):
            for seed, key in zip(candidate.trial.seeds, candidate.keys, strict=True) if candidate else ():
                if models_file(key).exists():
                    writer.writerow([cell.cell.setting, cell.cell.row, name, seed, models_file(key)])
    return text.getvalue()
