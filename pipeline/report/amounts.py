"""Statistics of the partitions of a table, and costs of its methods."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pipeline.report.plots import megabytes, seconds
from pipeline.report.summary import Summary
from pipeline.spec.files import partition_file


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


def costs(summary: Summary) -> list[dict[str, str]]:
    """Communication, time and memory of each method: ranges over the settings, of means over the seeds."""
    table = []
    for line in summary.pinned:
        entries = [entry for entry in line.entries.values() if entry.rows]
        if entries:
            table.append(
                {
                    "label": line.label,
                    "round": value_range(megabytes(entry)[0] for entry in entries),
                    "total": value_range(megabytes(entry)[1] for entry in entries),
                    "seconds": value_range(seconds(entry) for entry in entries),
                    "memory": value_range(
                        record.measured.peak_memory_bytes / 1e6 for entry in entries for record in entry.rows
                    ),
                }
            )
    return table


def value_range(values: Iterable[float]) -> str:
    """The smallest and the largest value, or one number if both are printed alike."""
    low, *_, high = sorted([*values] * 2)
    shown = [f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in (low, high)]
    return shown[0] if shown[0] == shown[1] else f"{shown[0]} – {shown[1]}"
