"""Statistics of a table's partitions, and quantities of its runs other than the score."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from pipeline.columns import Column, columns_of
from pipeline.formatting import csv_text, points
from pipeline.report.pairs import PairedDifference
from pipeline.report.summary import Entry, Summary
from pipeline.spec.paths import partition_file
from pipeline.store.scores import Score


def partition_statistics(summary: Summary) -> dict[str, dict[str, str]]:
    """The partition stage's statistics, by column, for every partition that exists."""
    table = {}
    for name in summary.partitions:
        path = partition_file(summary.id, name).with_suffix(".json")
        if path.exists():
            table[name] = statistics_columns(json.loads(path.read_text(encoding="utf-8")))
    return table


def statistics_columns(statistics: Mapping[str, Any]) -> dict[str, str]:
    """The printed columns of a partition's statistics, which include its specification and notes."""
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
    values = [value for record in entry.successes if (value := column.quantity(record)) is not None]
    return statistics.fmean(values) if values else None


def quantities(summary: Summary) -> dict[str, list[str]]:
    """The range over the settings of each report column (`columns_of`), by method label."""
    table, columns = {}, columns_of(summary.records).values()
    for line in summary.pinned:
        entries = [entry for entry in line.entries.values() if entry.successes]
        if entries:
            table[line.label] = [
                value_range(quantity(entry, column) for entry in entries) for column in columns
            ]
    return table


def spread(score: Score) -> str:
    """A mean and its standard deviation over the seeds.

    >>> spread(Score(82.4051, 1.5, 3)), spread(Score(82.4051, None, 1))
    ('82.41 ± 1.50', '82.41')
    """
    return points(score.mean) + ("" if score.std is None else f" ± {points(score.std)}")


def csv_of(rows: Iterable[Mapping[str, Any]]) -> str:
    """CSV text with a line for each of ``rows``, which have the same columns; empty without rows."""
    listed = list(rows)
    return csv_text(listed[0], (row.values() for row in listed)) if listed else ""


def decimals(value: float | None) -> str:
    """A number with four decimals, for a CSV file; empty for None."""
    return "" if value is None else f"{value:.4f}"


def difference_columns(
    gap: PairedDifference | None, name: str = "difference", prefix: str = ""
) -> dict[str, str]:
    """A difference and the ends of its interval, as columns of a CSV file."""
    mean, low, high = (gap.mean, gap.low, gap.high) if gap else (None, None, None)
    return {name: decimals(mean), f"{prefix}low": decimals(low), f"{prefix}high": decimals(high)}


def value_range(values: Iterable[float | None]) -> str:
    """The smallest and the largest value, or one number if both print alike; empty if there are none."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return ""
    low, high = known[0], known[-1]
    shown = [f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in (low, high)]
    return shown[0] if shown[0] == shown[1] else f"{shown[0]} – {shown[1]}"
