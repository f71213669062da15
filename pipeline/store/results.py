"""The outcome of a sweep, stored in two files.

`results.json` has what the searches selected and the keys of the records behind each cell; `rows.jsonl` has
these records, as in the ledger. A report needs nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import PlainSerializer, PlainValidator, TypeAdapter, ValidationInfo

from pfl.core.errors import InvalidInput, check_names
from pfl.core.files import read_lines, write_json, write_lines
from pfl.core.text import amount
from pfl.run.sources import Sources
from pfl.run.trials import Record
from pipeline.spec.paths import results_folder, table_names
from pipeline.spec.reported import Evaluation
from pipeline.spec.table import Subset, Table
from pipeline.store.records import RECORDS, read_record
from pipeline.store.scores import reported, score

CellStatus = Literal["done", "partial", "diverged", "failed"]


def _record(key: Any, info: ValidationInfo) -> Record:
    """The record with a key, from those in the validation context."""
    record = (info.context or {}).get(key)
    if not isinstance(record, Record):
        raise ValueError(f"no record has the key {key}")
    return record


Stored = Annotated[Record, PlainValidator(_record), PlainSerializer(lambda record: record.key)]
"""A record that `results.json` stores as its key."""


@dataclass(frozen=True)
class TrialResult:
    """The records of a trial: of all seeds, or of one seed up to a round, as a search compares them.

    Attributes:
        number: number of the search trial, 0 for the pinned one; None without a search.
        params: the searched parameters.
        lacking: by key, why a valid record has no number for its cell.
    """

    number: int | None
    params: Mapping[str, Any]
    records: tuple[Stored, ...]
    lacking: Mapping[str, str] = field(default_factory=dict)

    def cause(self, record: Record) -> str | None:
        """Why ``record`` gives no number, in a few words; None if it gives one."""
        return record.failure or self.lacking.get(record.key)

    @property
    def successes(self) -> tuple[Record, ...]:
        """The records of the seeds that gave a result."""
        return tuple(record for record in self.records if not self.cause(record))

    @property
    def diverged(self) -> tuple[Record, ...]:
        """The records of the seeds whose training diverged."""
        return tuple(record for record in self.records if record.failure and not record.failed)

    @property
    def simulated(self) -> tuple[Record, ...]:
        """The records of the seeds with numbers."""
        return self.successes + self.diverged

    @property
    def status(self) -> CellStatus:
        if len(self.successes) == len(self.records):
            return "done"
        return "partial" if self.successes else "diverged" if self.diverged else "failed"

    @property
    def errors(self) -> tuple[str, ...]:
        """A line for each seed without a result, with the cause."""
        return tuple(
            f"{record.phase}, seed {record.seed}: {cause}"
            for record in self.records
            if (cause := self.cause(record))
        )


SEARCH_COLUMNS = ("cell", "trial", "seed", "round", "accuracy", "samples", "parameters", "error")
"""Columns of a report's search.csv, which has a line for each `RecordedStep`."""


@dataclass(frozen=True)
class RecordedStep:
    """One simulation of a search: a trial with a seed up to a round.

    Attributes:
        params: the searched parameters.
        value: what the search maximises; None if the trial failed, and ``error`` says why.
        samples: number of samples trained on since its first round; None if it failed.
    """

    trial: int
    seed: int
    until: int
    params: Mapping[str, Any]
    value: float | None
    samples: int | None
    error: str | None


@dataclass(frozen=True)
class Comparison:
    """The best trial against the pinned configuration, on validation data with the seeds of the comparison.

    Attributes:
        gain: mean difference of the accuracies, in percentage points.
        error: its standard error over the seeds; None for one seed.
    """

    trial: int
    gain: float
    error: float | None


@dataclass(frozen=True)
class Selection:
    """The trial that a search selected, 0 for the pinned one, and its comparison, if there was one."""

    trial: int
    comparisons: tuple[Comparison, ...]


@dataclass(frozen=True)
class CellResult:
    """One cell of the table.

    Attributes:
        cell: "<setting>/<row>".
        evaluation: what is reported of it.
        selected, selection: what the search decided, and why; None without a search.
        searched: the steps of the search.
        imported: number of other searches' trials from which it began.
    """

    cell: str
    evaluation: Evaluation
    pinned: TrialResult
    selected: TrialResult | None
    searched: tuple[TrialResult, ...]
    selection: Selection | None
    imported: int = 0

    @property
    def setting(self) -> str:
        return self.cell.partition("/")[0]

    @property
    def row(self) -> str:
        return self.cell.partition("/")[2]

    @property
    def configurations(self) -> tuple[TrialResult, ...]:
        """The pinned configuration, and the selected one if there was a search."""
        return (self.pinned, self.selected) if self.selected else (self.pinned,)

    @property
    def trials(self) -> tuple[TrialResult, ...]:
        """All trials, each once even if the search selected the pinned one."""
        selected = (self.selected,) if self.selected and self.selected.number != self.pinned.number else ()
        return (self.pinned, *self.searched, *selected)

    @property
    def status(self) -> CellStatus:
        """The status of the pinned configuration; "partial" if it is done and the selected one is not."""
        others = any(trial.status != "done" for trial in self.configurations)
        return "partial" if self.pinned.status == "done" and others else self.pinned.status

    @property
    def errors(self) -> tuple[str, ...]:
        """One line for each failure, with the cause."""
        return tuple(error for trial in self.trials for error in trial.errors)

    @property
    def search(self) -> tuple[RecordedStep, ...]:
        """The steps of the search."""
        return tuple(
            RecordedStep(
                trial=trial.number or 0,
                seed=record.seed,
                until=record.until or record.config["rounds"],
                params=trial.params,
                value=None if trial.cause(record) else reported(record, self.evaluation),
                samples=None if record.failed else record.measured.samples,
                error=trial.cause(record),
            )
            for trial in self.searched
            for record in trial.records
        )


@dataclass(frozen=True)
class Results:
    """A sweep's outcome.

    Attributes:
        config: the whole table.
        subset: the part of it that was selected, of which ``cells`` has what is available.
        manifest: what the download stage found.
        wall_seconds: wall time of the sweep.
        sources: the code of the sweep.
    """

    table: str
    config: Table
    subset: Subset
    manifest: Mapping[str, Any]
    cells: tuple[CellResult, ...]
    wall_seconds: float
    trials_run: int
    trials_from_ledger: int
    sources: Sources

    @property
    def records(self) -> list[Record]:
        """The records of all simulations, each once."""
        records = (record for cell in self.cells for trial in cell.trials for record in trial.records)
        return list({record.key: record for record in records}.values())

    @property
    def failed(self) -> list[Record]:
        """The records without numbers."""
        return [record for record in self.records if record.failed]


_FILE = TypeAdapter(Results)


def save_results(results: Results, lines: Iterable[bytes]) -> None:
    """Write ``results/<table>/``: `rows.jsonl`, `results.json`, and for `dvc metrics` `metrics.json`.

    Args:
        lines: those of the results' records.

    Raises:
        InvalidInput: a file cannot be written; its previous version is then unchanged.
    """
    folder = results_folder(results.table)
    write_lines(folder / RECORDS, lines)
    write_json(folder / "results.json", _FILE.dump_python(results, mode="json", by_alias=True))
    write_json(folder / "metrics.json", metrics_of(results))


def load_results(table: str) -> Results:
    """The outcome of a table's last sweep.

    Raises:
        InvalidInput: the table has no results, or a file is damaged or of another version.
    """
    folder = results_folder(table)
    path = folder / "results.json"
    if not path.exists():
        check_names("table", [table], table_names())
        again = f"dvc exp run -S 'tables=[{table}]'"
        accepted = f"a table whose data and records are here; {again} runs what is pending"
        raise InvalidInput("table", table, accepted)
    try:
        records = map(read_record, (line.content for line in read_lines(folder / RECORDS)))
        return _FILE.validate_json(path.read_bytes(), context={record.key: record for record in records})
    except ValueError:
        accepted = f"files that a sweep of this version wrote; `{forced_sweep(table)}` writes them again"
        raise InvalidInput("results", str(path), accepted) from None


def metrics_of(results: Results) -> dict[str, Any]:
    """The content of `metrics.json`: the reported number of each cell's pinned configuration."""
    scores = {cell.cell: score(cell.pinned.successes, cell.evaluation) for cell in results.cells}
    means = {cell: round(reached.mean, 2) for cell, reached in scores.items() if reached}
    return {"table": results.table, **means}


def failures(results: Results) -> str:
    """How many runs failed, and what retries them; empty if none did.

    Diverged runs do not count as failed: they would diverge again.
    """
    if not results.failed:
        return ""
    count = f"{len(results.failed)} of {amount(len(results.records), 'run')} failed"
    return f"{count}; the next `dvc repro` retries them"


def forced_sweep(table: str) -> str:
    """The command that runs a table's sweep stage even if none of its dependencies has changed."""
    return f"dvc repro --force --single-item train-sweep@{table}"
