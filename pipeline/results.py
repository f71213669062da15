"""What a sweep leaves for the report, for `dvc metrics` and for `dvc plots`."""

from __future__ import annotations

import csv
import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.agenda import Agenda
from pipeline.config import Subset, Table, manifest_file
from pipeline.environment import Sources
from pipeline.summary import moment, score

FOLDER = Path("results")


def write(
    name: str, table: Table, subset: Subset, agenda: Agenda, sources: Sources, seconds: float
) -> dict[str, Any]:
    """Write `results/<table>/` and return the content of its `results.json`.

    Args:
        table: the whole of it.
        subset: the part that ``agenda`` consists of.
        seconds: that the sweep took.
    """
    cells = [cell.result(agenda.outcomes) for cell in agenda.cells]
    results = {
        "table": name,
        "title": table.title,
        "config": table.model_dump(by_alias=True),
        "subset": subset.model_dump(),
        "manifest": json.loads(manifest_file(name).read_text(encoding="utf-8")),
        "cells": cells,
        "wall_seconds": seconds,
        "trials_run": agenda.ran,
        "trials_from_ledger": agenda.served,
        "commit": sources.commit,
        "dirty": sources.dirty,
    }
    evaluation = results["config"]["evaluation"]
    folder = FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "results.json", results)
    for setting in table.part(subset).settings:
        column = [cell for cell in cells if cell["setting"] == setting]
        found = {cell["row"]: score(cell["pinned"]["rows"], evaluation) for cell in column}
        _write(
            folder / "metrics" / f"{setting}.json", {row: round(s.mean, 2) for row, s in found.items() if s}
        )
    with (folder / "curves.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["setting", "method", "round", "accuracy"])
        for cell in cells:
            for number, accuracy in _curve(cell, evaluation):
                writer.writerow([cell["setting"], cell["row"], number, round(accuracy, 3)])
    return results


def _curve(cell: Mapping[str, Any], evaluation: Mapping[str, Any]) -> list[tuple[int, float]]:
    """Accuracy by round of the pinned configuration, the mean over its seeds."""
    runs = [row["metrics"] for row in cell["pinned"]["rows"]]
    if not runs:
        return []
    at = moment(runs[0], evaluation)
    return [
        (together[0]["round"], statistics.fmean(entry[at][evaluation["metric"]] for entry in together))
        for together in zip(*(run["rounds"] for run in runs), strict=True)
    ]


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
