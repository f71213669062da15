"""The page on the published numbers that were checked within a time limit: README.md and cells.csv."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.formatting import duration
from pipeline.report.agreement import answer, coverage, tally
from pipeline.report.amounts import csv_of
from pipeline.report.notices import incomparable, notices, small_print
from pipeline.report.provenance import machine
from pipeline.report.summary import Entry, Summary
from pipeline.report.table_report import environment, write_files


@dataclass(frozen=True)
class CheckedCell:
    """A published number, and what was done to check it.

    Attributes:
        computed, served: number of runs of this call, and of runs from the ledger.
        pending: the expected seconds of each missing run.
    """

    entry: Entry
    computed: int
    served: int
    pending: Sequence[float]

    @property
    def is_checked(self) -> bool:
        """Whether there is a number of ours, or training diverged."""
        return bool(self.entry.score) or self.entry.status == "diverged"

    @property
    def missing(self) -> str:
        """For example "4 (about 12 min 3 s)"; empty if nothing is pending."""
        return f"{len(self.pending)} (about {duration(sum(self.pending))})" if self.pending else ""


def write_page(
    folder: Path,
    summary: Summary,
    computed: set[str],
    pending: Mapping[str, Sequence[float]],
    left_out: Collection[str],
    facts: Mapping[str, Any],
) -> None:
    """Write README.md and cells.csv.

    Args:
        summary: summary of the pinned configurations, with the seeds that have run.
        computed: keys of the runs that this call has computed.
        pending: the expected seconds of each missing run, by cell.
        left_out: the settings that were not selected.
        facts: the ``hours`` of the budget, the time that it ``took`` in words, the number of ``runs``
            computed, the time of all runs ``left``, the ``rule`` of their order, and the ``command``.

    Raises:
        InvalidInput: a file cannot be written.
    """
    whole, summary = summary, summary.without(left_out)
    skipped = summary.table.published.incomparable_rows if summary.table.published else set()
    cells = [_cell(entry, computed, pending) for entry in summary.compared if entry.row not in skipped]
    counted = tally(summary)
    context = {
        "summary": summary,
        "notices": notices(summary),
        "answer": answer(summary, counted, [], []),
        "coverage": coverage(summary, counted),
        "small_print": small_print(summary),
        "checked": [cell for cell in cells if cell.is_checked],
        "unchecked": [cell for cell in cells if not cell.is_checked],
        "left_out": [whole.columns[setting] for setting in left_out],
        "incomparable": incomparable(summary),
        "machines": sorted({machine(record.success.hardware) for record in summary.records}),
        "facts": facts,
    }
    page = environment().get_template("reproduction.md.j2").render(context)
    write_files(folder, {"README.md": page, "cells.csv": csv_of(map(_csv_row, cells))})


def _cell(entry: Entry, computed: set[str], pending: Mapping[str, Sequence[float]]) -> CheckedCell:
    keys = set(entry.keys)
    return CheckedCell(
        replace(entry, rank=None),  # a rank among the few cells that have run says little
        len(keys & computed),
        len(keys - computed),
        pending.get(f"{entry.setting}/{entry.row}", ()),
    )


def _csv_row(cell: CheckedCell) -> dict[str, Any]:
    entry = cell.entry
    assert entry.published and entry.verdict
    return {
        "setting": entry.setting,
        "row": entry.row,
        "published": entry.published.mean,
        "ours": entry.mean,
        "difference": entry.difference,
        "verdict": entry.verdict.name,
        "seeds": entry.score.seeds if entry.score else 0,
        "runs_computed": cell.computed,
        "runs_from_ledger": cell.served,
        "runs_pending": len(cell.pending),
        "seconds_pending": round(sum(cell.pending)),
    }
