"""Cells side by side: of several tables, or of one table's rows and a reference row."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from textwrap import fill

from pfl.core.errors import InvalidInput
from pfl.core.text import amount
from pipeline.formatting import signed
from pipeline.report.amounts import csv_of
from pipeline.report.formats import aligned, literal, plain, without_tags
from pipeline.report.pairs import INTERVAL_RULE, PairedDifference, difference
from pipeline.report.summary import UNTRIED, Entry, Summary
from pipeline.spec.axes import AVERAGE

RULE = (
    "Mean ± sample standard deviation over the seeds; of a searched row, of the selected configuration. "
    f"{INTERVAL_RULE}"
)


@dataclass(frozen=True)
class ComparedCell:
    """A cell and its difference from another.

    Attributes:
        row: the printed name.
        minus: the table whose cell is subtracted, or the printed name of the row that is; None for the cells
            that the others are compared with.
        difference: None if the cells share no seed, or one of them is not an accuracy.
        same: whether both have the same runs.
    """

    row: str
    table: str
    entry: Entry
    minus: str | None = None
    difference: PairedDifference | None = None
    same: bool = False

    @property
    def columns(self) -> dict[str, object]:
        """The cell as a line of a data frame or a CSV file."""
        score, gap = self.entry.score, self.difference
        return {
            "setting": self.entry.setting,
            "row": self.row,
            "table": self.table,
            "configuration": self.entry.configuration,
            "status": self.entry.status,
            "mean": self.entry.mean,
            "std": score and score.std,
            "seeds": score.seeds if score else 0,
            "minus": self.minus,
            "difference": gap and gap.mean,
            "low": gap and gap.low,
            "high": gap and gap.high,
            "pairs": gap and gap.pairs,
            "over": gap and gap.over,
        }

    @property
    def shown(self) -> str:
        """The difference, as in "+0.90 (+0.12 to +1.68, 5 seeds)"."""
        gap = self.difference
        if self.same:
            return "the same runs"
        if gap is None:
            return "–" if self.minus else ""
        interval = f"{gap.interval}, " if gap.interval else ""
        return f"{signed(gap.mean)} ({interval}{amount(gap.pairs, gap.over)})"


@dataclass(frozen=True)
class ComparedColumn:
    """One column of a comparison, as it is printed.

    Attributes:
        grid: the headings, then the cells of each row as texts.
    """

    label: str
    cells: tuple[ComparedCell, ...]
    grid: tuple[tuple[str, ...], ...]


def compare_tables(summaries: Sequence[Summary], settings: Collection[str]) -> list[ComparedColumn]:
    """The cells of several tables, minus those of the first.

    Columns are matched by the names of settings, rows by their printed names. Columns in which nothing has
    been tried are left out unless ``settings`` names them.

    Raises:
        InvalidInput: no cell is in two of the tables.
    """
    columns, shared = [], False
    names = [summary.id for summary in summaries]
    for setting, label in _columns(summaries, settings):
        tables = [dict(_entries(summary, setting)) for summary in summaries]
        cells: list[ComparedCell] = []
        grid = [("", *names, *(f"{name} − {names[0]}" for name in names[1:]))]
        for row in dict.fromkeys(row for table in tables for row in table):
            entries = [table.get(row) for table in tables]
            shared = shared or sum(map(bool, entries)) > 1
            by_table = {
                name: _compared(row, name, entry, names[0] if i else None, entries[0])
                for i, (name, entry) in enumerate(zip(names, entries, strict=True))
                if entry
            }
            texts = [plain(by_table[name].entry) if name in by_table else "" for name in names]
            gaps = [by_table[name].shown if name in by_table else "" for name in names[1:]]
            cells += by_table.values()
            grid.append((row, *texts, *gaps))
        columns.append(ComparedColumn(label, tuple(cells), tuple(grid)))
    if not shared:
        accepted = "tables with a common setting and a common row in it, by its printed name"
        raise InvalidInput("tables", ", ".join(names), accepted)
    tried = [column for column in columns if any(cell.entry.status not in UNTRIED for cell in column.cells)]
    return columns if settings else tried or columns


def compare_rows(summary: Summary, row: str, settings: Collection[str]) -> list[ComparedColumn]:
    """The rows of a table, the best first, minus ``row``."""
    base = summary.labels[row]
    columns = []
    for setting, label in _columns([summary], settings):
        entries = dict(_entries(summary, setting))
        ordered = sorted(
            entries.items(), key=lambda item: -item[1].score.mean if item[1].score else float("inf")
        )
        cells = tuple(
            _compared(name, summary.id, entry, None if name == base else base, entries[base])
            for name, entry in ordered
        )
        grid = [
            ("", summary.id, f"minus {base}"),
            *((cell.row, plain(cell.entry), cell.shown) for cell in cells),
        ]
        columns.append(ComparedColumn(label, cells, tuple(grid)))
    return columns


def text(columns: Iterable[ComparedColumn]) -> str:
    """Text for a terminal."""
    lines: list[str] = []
    for column in columns:
        lines += [column.label, *(f"  {line}" for line in aligned(column.grid)), ""]
    return "\n".join([*lines, fill(RULE, 100), ""])


def markdown(columns: Iterable[ComparedColumn]) -> str:
    """Markdown with a section and a table per column."""
    lines = []
    for column in columns:
        heading, *rows = (f"| {' | '.join(map(literal, row))} |" for row in column.grid)
        line = "| --- |" + " --- |" * (len(column.grid[0]) - 1)
        lines += [f"## {literal(column.label)}", "", heading, line, *rows, ""]
    return without_tags("\n".join([*lines, RULE, ""]))


def comma_separated(columns: Iterable[ComparedColumn]) -> str:
    """CSV text with a line per cell, with unrounded numbers."""
    return csv_of(compared.columns for column in columns for compared in column.cells)


def _columns(summaries: Sequence[Summary], settings: Collection[str]) -> Iterator[tuple[str, str]]:
    """Name and label of each setting."""
    labels: dict[str, str] = {}
    for summary in summaries:
        labels = {**summary.columns, **labels}
    for setting, label in labels.items():
        if setting != AVERAGE and (not settings or setting in settings):
            yield setting, label


def _entries(summary: Summary, setting: str) -> Iterator[tuple[str, Entry]]:
    """The entries of a column by printed name; for a searched row, that of the selected configuration."""
    if setting in summary.columns:
        for line in summary.tuned_lines:
            yield line.label, line.entries[setting]


def _compared(row: str, table: str, entry: Entry, minus: str | None, other: Entry | None) -> ComparedCell:
    if minus is None or other is None:
        return ComparedCell(row, table, entry, minus)
    ours, theirs = ([record.key for record in either.successes] for either in (entry, other))
    are_accuracies = entry.evaluation.is_accuracy and other.evaluation.is_accuracy
    gap = difference(entry, other) if are_accuracies else None
    same = bool(ours) and ours == theirs and entry.evaluation == other.evaluation
    return ComparedCell(row, table, entry, minus, gap, same)
