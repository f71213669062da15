"""A sweep's results as a printed table: a score for every cell, ranks, published numbers."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pfl.core.config import Config
from pfl.run.sources import Sources
from pfl.run.trials import Record
from pipeline.report.verdicts import Status, Verdict, judge
from pipeline.spec.axes import AverageColumn, Row
from pipeline.spec.published import Published
from pipeline.spec.reported import Evaluation
from pipeline.spec.search_space import TRAINING
from pipeline.spec.table import Subset, Table, printed_cells
from pipeline.store.results import CellResult, Results
from pipeline.store.scores import Score, reported, score

Configuration = Literal["pinned", "selected"]
LineKey = tuple[str, Configuration]
"""A row and its configuration."""

UNTRIED: tuple[Status, ...] = ("not selected", "not run")
WORST: tuple[Status, ...] = (*UNTRIED, "failed", "diverged", "partial", "done")
"""The statuses, the worst first."""


@dataclass(frozen=True)
class Entry:
    """One entry of the printed table.

    Attributes:
        cause: why the status is not "done"; empty if it is, or if nothing has been tried.
        score: None unless at least one seed gave a result.
        parameters: the configuration's hyperparameters, learning rate, and other training options that the
            cell's search varies.
        successes: the records, one per seed that gave a result.
        diverged: the records of the seeds whose training diverged.
        averaged: the entries of which it is the mean, if it is in an average column and they were tried.
        evaluation: what is reported here.
        published: what the paper prints here; only the pinned configuration is compared with it.
        verdict: the result of that comparison; None if nothing is printed.
        rank: 1 for the best of its column, 2 for the second, among complete entries; ties share a rank.
    """

    setting: str
    row: str
    configuration: Configuration
    evaluation: Evaluation
    status: Status = "not run"
    cause: str = ""
    score: Score | None = None
    parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    successes: tuple[Record, ...] = ()
    diverged: tuple[Record, ...] = ()
    averaged: tuple[Entry, ...] = ()
    published: Published | None = None
    verdict: Verdict | None = None
    rank: int | None = None

    @property
    def simulated(self) -> tuple[Record, ...]:
        """The records of the entry's own simulations; an average has none."""
        return self.successes + self.diverged

    @property
    def keys(self) -> tuple[str, ...]:
        """The ledger keys of the simulations behind the entry."""
        own = tuple(record.key for record in self.simulated)
        return own + tuple(key for entry in self.averaged for key in entry.keys)

    @property
    def mean(self) -> float | None:
        """The mean of the score; None without a score."""
        return self.score.mean if self.score else None

    @property
    def by_seed(self) -> dict[int, float]:
        """The reported numbers of the seeds that gave a result."""
        return {record.seed: reported(record, self.evaluation) for record in self.successes}

    @property
    def complete(self) -> bool:
        """Whether all requested seeds gave a result."""
        return self.status == "done"

    @property
    def is_of_all(self) -> bool:
        """Whether it is an accuracy over all clients, rather than over single ones."""
        return self.evaluation.is_accuracy and self.evaluation.clients is None

    @property
    def is_ranked(self) -> bool:
        """Whether it is ranked within its column."""
        return self.complete and self.score is not None and self.is_of_all

    @property
    def difference(self) -> float | None:
        """Our mean minus the published one, in points; None if the quantity is not an accuracy."""
        if self.score is None or self.published is None or not self.evaluation.is_accuracy:
            return None
        return self.score.mean - self.published.mean

    @property
    def ratio(self) -> float | None:
        """Our mean divided by the published one."""
        if self.score is None or self.published is None or not self.published.mean:
            return None
        return self.score.mean / self.published.mean


@dataclass(frozen=True)
class Line:
    """A printed row: a method in one configuration, its entries by setting."""

    row: str
    label: str
    method: str
    configuration: Configuration
    entries: Mapping[str, Entry]

    @property
    def key(self) -> LineKey:
        return self.row, self.configuration

    @property
    def heading(self) -> str:
        """The label, and the configuration if the search has selected it."""
        return self.label + (", selected" if self.configuration == "selected" else "")


@dataclass(frozen=True)
class Summary:
    """What a report prints.

    Attributes:
        table: all settings and rows, even if only a part was run, with the requested seeds.
        columns: label by setting or average, in the table's order.
        pinned: one line per method, in the table's order.
        selected: likewise, of the searched rows.
        results: the whole outcome of the sweep.
    """

    id: str
    table: Table
    columns: Mapping[str, str]
    pinned: tuple[Line, ...]
    selected: tuple[Line, ...]
    results: Results

    @property
    def lines(self) -> tuple[Line, ...]:
        return self.pinned + self.selected

    @property
    def tuned_lines(self) -> tuple[Line, ...]:
        """One line per method: the selected configuration of a searched row, the pinned one of the others."""
        selected = {line.row: line for line in self.selected}
        return tuple(selected.get(line.row, line) for line in self.pinned)

    @property
    def labels(self) -> dict[str, str]:
        """Label by row."""
        return self.table.row_labels

    @property
    def settings(self) -> dict[str, str]:
        """Label by setting: the columns without the average."""
        return {name: label for name, label in self.columns.items() if name in self.table.settings}

    @property
    def partitions(self) -> dict[str, str]:
        """Labels of partitions by name: those of settings, and of rows with a separate partition."""
        headings = {}
        for setting, label in self.columns.items():
            headings[setting] = label
            for row in self.table.methods:
                headings.setdefault(row.partition_in(setting), f"{label}, {self.labels[row.id]}")
        return headings

    @property
    def entries(self) -> tuple[Entry, ...]:
        return tuple(entry for line in self.lines for entry in line.entries.values())

    @property
    def records(self) -> tuple[Record, ...]:
        """The record of every simulation behind the table, without duplicates."""
        return tuple({record.key: record for entry in self.entries for record in entry.simulated}.values())

    @property
    def compared(self) -> tuple[Entry, ...]:
        """The entries that have a published number to compare with."""
        return tuple(entry for entry in self.entries if entry.published)

    @property
    def empty(self) -> dict[str, str]:
        """The columns in which nothing has been tried; empty if that holds for all columns."""
        tried = {entry.setting for entry in self.entries if entry.status not in UNTRIED}
        return {name: label for name, label in self.columns.items() if tried and name not in tried}

    def without(self, settings: Collection[str]) -> Summary:
        """This summary with fewer columns."""

        def fewer(lines: tuple[Line, ...]) -> tuple[Line, ...]:
            return tuple(
                dataclasses.replace(
                    line, entries={name: e for name, e in line.entries.items() if name not in settings}
                )
                for line in lines
            )

        columns = {name: label for name, label in self.columns.items() if name not in settings}
        return dataclasses.replace(
            self, columns=columns, pinned=fewer(self.pinned), selected=fewer(self.selected)
        )


def summarise(results: Results) -> Summary:
    """Arrange a sweep's results as the table that its configuration declares.

    Raises:
        InvalidInput: the table names a paper, a file or a cell that does not exist.
    """
    wanted = results.subset.seeds or results.config.seeds
    table = results.config.model_copy(update={"seeds": [s for s in results.config.seeds if s in wanted]})
    cells = {cell.cell: cell for cell in results.cells}
    printed = printed_cells(table)

    def line(row: Row, configuration: Configuration) -> Line:
        entries: dict[str, Entry] = {}
        for name, column in table.columns.items():
            if isinstance(column, AverageColumn):
                entry = _averaged(name, list(entries.values()))
            else:
                evaluation = table.evaluation.override(column.evaluation, row.evaluation)
                entry = Entry(name, row.id, configuration, evaluation)
                if cell := cells.get(f"{name}/{row.id}"):
                    entry = _filled(entry, cell)
                elif not results.subset.has(name, row.id):
                    entry = dataclasses.replace(entry, status="not selected")
            held_against = printed.get((name, row.id))
            if configuration == "pinned" and table.published and held_against:
                comparable = row.id not in table.published.incomparable_rows
                seeds = table.published.seeds
                verdict = judge(entry.score, entry.status, held_against, seeds, comparable)
                entry = dataclasses.replace(entry, published=held_against, verdict=verdict)
            entries[name] = entry
        return Line(row.id, table.row_labels[row.id], row.method, configuration, entries)

    pinned = [line(row, "pinned") for row in table.methods]
    selected = [line(row, "selected") for row in table.methods if row.id in table.searches]
    return Summary(
        id=results.table,
        table=table,
        columns=table.column_labels,
        pinned=_ranked(pinned),
        selected=_ranked(selected),
        results=results,
    )


def blank(name: str, table: Table) -> Summary:
    """The summary of a table before any run: its pinned configurations and the printed numbers."""
    nothing = Sources(commit="unknown", dirty=False, sources="")
    manifest: dict[str, Any] = {"datasets": {}, "absent": []}
    return summarise(Results(name, table, Subset(), manifest, (), 0.0, 0, 0, nothing))


def _filled(entry: Entry, cell: CellResult) -> Entry:
    """The entry with the outcome of ``cell``."""
    tried = cell.pinned if entry.configuration == "pinned" else cell.selected
    assert tried  # a sweep ends only after its searches
    config = Config.from_dict(tried.records[0].config)
    searched = {"lr", *(name for trial in cell.trials for name in trial.params)}
    searched -= config.hyperparameters.keys()  # pFedHN has a weight decay of its own
    training = {name: getattr(config, name) for name in TRAINING if name in searched}
    return dataclasses.replace(
        entry,
        status=tried.status,
        cause=tried.errors[0].removeprefix("final, ") if tried.errors else "",
        score=score(tried.successes, entry.evaluation),
        parameters={**config.hyperparameters, **training},
        successes=tried.successes,
        diverged=tried.diverged,
    )


def _averaged(name: str, entries: Sequence[Entry]) -> Entry:
    """The mean of a row's entries if all have a score, with the fewest seeds of one of them and the status of
    the worst; it has no deviation, as settings are no repetitions.
    """
    first = min(entries, key=lambda entry: entry.is_of_all)  # no rank if a column is of single clients
    worst = min(entries, key=lambda entry: WORST.index(entry.status))
    average = Entry(name, first.row, first.configuration, first.evaluation, worst.status, worst.cause)
    if worst.status in UNTRIED:
        return average
    scores = [entry.score for entry in entries if entry.score]
    score = None
    if len(scores) == len(entries):
        score = Score(statistics.fmean(s.mean for s in scores), None, min(s.seeds for s in scores))
    return dataclasses.replace(average, score=score, averaged=tuple(entries))


def _ranked(lines: Iterable[Line]) -> tuple[Line, ...]:
    """The lines with the best and the second entry of every column ranked; only exact ties share a rank."""
    lines = tuple(lines)
    leaders = {}
    for setting in lines[0].entries if lines else ():
        column = [line.entries[setting] for line in lines]
        ranked = [entry.score.mean for entry in column if entry.is_ranked and entry.score]
        leaders[setting] = sorted(set(ranked), reverse=True)[:2] if len(ranked) > 1 else []

    def marked(entry: Entry) -> Entry:
        best = leaders[entry.setting]
        if not entry.is_ranked or entry.score is None or entry.score.mean not in best:
            return entry
        return dataclasses.replace(entry, rank=best.index(entry.score.mean) + 1)

    return tuple(
        dataclasses.replace(line, entries={name: marked(entry) for name, entry in line.entries.items()})
        for line in lines
    )
