"""Statistics of the partitions of a table, and the quantities of its runs beside the score."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pipeline.columns import Column, columns_of
from pipeline.report.summary import Entry, Summary
from pipeline.spec.paths import partition_file


def partition_statistics(summary: Summary, root: Path) -> dict[str, dict[str, str]]:
    """The partition stage's statistics, by column, for every partition that exists."""
    table = {}
    for name in summary.partitions:
        path = root / partition_file(summary.id, name).with_suffix(".json")
        if path.exists():
            table[name] = statistics_columns(json.loads(path.read_text(encoding="utf-8")))
    return table


def statistics_columns(statistics: Mapping[str, Any]) -> dict[str, str]:
    """The columns of a partition whose statistics, specification and notes are given."""
    size, classes = statistics["size"], statistics["classes"]
    return {
        "Partition": statistics["spec"],
        "Clients": str(statistics["clients"]),
        "Training and test samples": f"{statistics['train']:,} + {statistics['test']:,}",
        "Samples per client": f"{size['mean']:.0f} ± {size['std']:.0f} ({size['min']} – {size['max']})",
        "Classes per client": f"{classes['mean']:.1f} ({classes['min']} – {classes['max']})",
        "Label cosine": f"{statistics['label_cosine']:.2f}",
        "Notes": "; ".join(statistics["notes"]),
    }


def quantity(entry: Entry, column: Column) -> float | None:
    """The mean of a column over the seeds; None if no record of the entry has it."""
    values = [value for record in entry.rows if (value := column.of(record)) is not None]
    return statistics.fmean(values) if values else None


def quantities(summary: Summary) -> dict[str, list[str]]:
    """By the label of a method: the range over the settings of each of the `columns_of` the records."""
    table, columns = {}, columns_of(summary.rows).values()
    for line in summary.pinned:
        entries = [entry for entry in line.entries.values() if entry.rows]
        if entries:
            table[line.label] = [value_range(quantity(entry, one) for entry in entries) for one in columns]
    return table


def value_range(values: Iterable[float | None]) -> str:
    """The smallest and the largest value, or one number if both are printed alike; empty without any."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return ""
    low, high = known[0], known[-1]
    shown = [f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in (low, high)]
    return shown[0] if shown[0] == shown[1] else f"{shown[0]} – {shown[1]}"
