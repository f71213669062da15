"""What a sweep leaves for the report, for `dvc metrics` and for `dvc plots`."""

from __future__ import annotations

import csv
import io
import statistics
from pathlib import Path
from typing import Any

from pfl.files import write_json, write_text
from pipeline.spec.evaluation import curves as curves_of
from pipeline.spec.table import Subset, Table
from pipeline.store.json_io import load_manifest
from pipeline.store.score import score
from pipeline.store.workspace import Sources, models_file
from pipeline.sweep.scheduler import Scheduler

FOLDER = Path("results")


def write(
    name: str, table: Table, subset: Subset, scheduler: Scheduler, sources: Sources, seconds: float
) -> dict[str, Any]:
    """Write `results/<table>/` and return the content of its `results.json`.

    Args:
        table: the whole of it.
        subset: the part that ``scheduler`` consists of.
        seconds: that the sweep took.

    Raises:
        InvalidInput: a file cannot be written; what was there before is still whole.
    """
    cells = [cell.result(scheduler.outcomes) for cell in scheduler.cells]
    results = {
        "table": name,
        "title": table.title,
        "config": table.model_dump(by_alias=True),
        "subset": subset.model_dump(),
        "manifest": load_manifest(name),
        "cells": cells,
        "wall_seconds": seconds,
        "trials_run": scheduler.ran,
        "trials_from_ledger": scheduler.served,
        "commit": sources.commit,
        "dirty": sources.dirty,
        "sources": sources.sources,
    }
    pinned = [
        (cell.cell, found["pinned"]["rows"]) for cell, found in zip(scheduler.cells, cells, strict=True)
    ]
    folder = FOLDER / name
    write_json(folder / "results.json", results)
    for setting in table.part(subset).settings:
        found = {cell.row: score(rows, cell.evaluation) for cell, rows in pinned if cell.setting == setting}
        means = {row: round(s.mean, 2) for row, s in found.items() if s}
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
