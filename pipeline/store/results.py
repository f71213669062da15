"""A sweep's `results.json`, which has everything that a report needs; its format is known here alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pfl.core.errors import InvalidInput, unknown_name
from pfl.core.text import amount
from pfl.run.runs import Run, Runs
from pfl.run.trials import Record, Sources
from pipeline.spec.cells import cells
from pipeline.spec.files import results_folder, table_names
from pipeline.spec.table import Subset, Table
from pipeline.store.scores import score
from pipeline.store.stage_files import stored

CellStatus = Literal["done", "partial", "diverged", "failed"]


@dataclass(frozen=True)
class ConfigurationResult:
    """One configuration with all seeds.

    Attributes:
        trial: the search trial that it comes from, 0 being the pinned one; None without a search.
        params: the hyperparameters.
        rows: the records of the seeds that gave a result.
        diverged: the records of the seeds whose training diverged.
        failed: the keys of the seeds without numbers.
    """

    trial: int | None
    params: Mapping[str, Any]
    lr: float
    rows: tuple[Record, ...]
    diverged: tuple[Record, ...]
    failed: tuple[str, ...]

    @property
    def simulated(self) -> tuple[Record, ...]:
        """The records of the seeds with numbers."""
        return self.rows + self.diverged


@dataclass(frozen=True)
class SearchResult:
    """One simulation of a search: a trial with a seed up to a round.

    Attributes:
        params: those that are searched.
        value: what the search maximises; None if the trial failed; ``error`` then says why.
        samples: number of samples trained on since its first round; None if it failed.
    """

    trial: int
    seed: int
    until: int
    params: Mapping[str, Any]
    value: float | None
    samples: int | None
    key: str
    error: str | None = None


@dataclass(frozen=True)
class Comparison:
    """A finalist against the pinned configuration, on validation data with all seeds.

    Attributes:
        gain: mean difference of the accuracies, in percentage points.
        error: its standard error over the seeds; None for one seed.
    """

    trial: int
    gain: float
    error: float | None


@dataclass(frozen=True)
class Selection:
    """What a search selected: trial 0 is the pinned configuration."""

    trial: int
    comparisons: tuple[Comparison, ...]


@dataclass(frozen=True)
class CellResult:
    """One cell of the table.

    Attributes:
        selected, selection: what the search decided, and why; None without a search.
        errors: one line for each failure, with the cause.
    """

    cell: str
    setting: str
    row: str
    method: str
    status: CellStatus
    pinned: ConfigurationResult
    selected: ConfigurationResult | None
    search: tuple[SearchResult, ...]
    selection: Selection | None
    errors: tuple[str, ...]

    @property
    def configurations(self) -> tuple[ConfigurationResult, ...]:
        """The pinned one, and the selected one if there was a search."""
        return (self.pinned, self.selected) if self.selected else (self.pinned,)


@dataclass(frozen=True)
class Results:
    """A sweep's outcome.

    Attributes:
        config: the whole table.
        subset: the part of it that was selected; of that, ``cells`` has what there is.
        manifest: what the download stage found.
        wall_seconds: of the sweep.
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
    def keys(self) -> set[str]:
        """The keys of all simulations, failed ones included."""
        searched = {one.key for cell in self.cells for one in cell.search}
        found = {row.key for one in self._configurations for row in one.simulated}
        return searched | found | self.failed

    @property
    def failed(self) -> set[str]:
        """The keys of the simulations without numbers."""
        searched = {one.key for cell in self.cells for one in cell.search if one.samples is None}
        return searched | {key for one in self._configurations for key in one.failed}

    @property
    def _configurations(self) -> list[ConfigurationResult]:
        return [one for cell in self.cells for one in cell.configurations]

    def to_json(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "title": self.config.title,
            "config": self.config.model_dump(by_alias=True),
            "subset": self.subset.model_dump(),
            "manifest": self.manifest,
            "cells": [
                {
                    **_fields(cell),
                    "pinned": _configuration_to_json(cell.pinned),
                    "selected": _configuration_to_json(cell.selected) if cell.selected else None,
                    "search": [dataclasses.asdict(trial) for trial in cell.search],
                    "selection": dataclasses.asdict(cell.selection) if cell.selection else None,
                }
                for cell in self.cells
            ],
            "wall_seconds": self.wall_seconds,
            "trials_run": self.trials_run,
            "trials_from_ledger": self.trials_from_ledger,
            **dataclasses.asdict(self.sources),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Results:
        """Results that `to_json` wrote.

        Raises:
            ValueError: they have another format.
        """
        try:
            return cls(
                table=values["table"],
                config=Table.model_validate(values["config"]),
                subset=Subset.model_validate(values["subset"]),
                manifest=values["manifest"],
                cells=tuple(map(_cell, values["cells"])),
                wall_seconds=values["wall_seconds"],
                trials_run=values["trials_run"],
                trials_from_ledger=values["trials_from_ledger"],
                sources=Sources(values["commit"], values["dirty"], values["sources"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no results ({error!r})") from None


def metrics_of(results: Results) -> dict[str, Any]:
    """The content of `metrics.json`: the reported number of each cell's pinned configuration."""
    evaluations = {cell.id: cell.evaluation for cell in cells(results.table, results.config)}
    scores = {cell.cell: score(cell.pinned.rows, evaluations[cell.cell]) for cell in results.cells}
    means = {cell: round(reached.mean, 2) for cell, reached in scores.items() if reached}
    return {"table": results.table, **means}


def check_metrics(results: Results, root: Path) -> None:
    """Check that `metrics.json` has the numbers of ``results``, so that a report shows no others.

    Raises:
        InvalidInput: it has others, as it was written by other code.
    """
    path = root / results_folder(results.table) / "metrics.json"
    written = stored(path)
    if written is not None and written != metrics_of(results):
        accepted = f"the numbers of results.json; `{forced_sweep(results.table)}` writes both again"
        raise InvalidInput("metrics", str(path), accepted)


def load_results(table: str, root: Path) -> Results:
    """The content of a table's ``results.json``.

    Args:
        root: the project's root folder.

    Raises:
        InvalidInput: the table has no results, or the file is damaged or of another version.
    """
    path = root / results_folder(table) / "results.json"
    if not path.exists():
        if table not in (known := table_names(root)):
            raise unknown_name("table", table, known)
        again = f"dvc exp run -S 'tables=[{table}]'"
        accepted = f"a table with results here; {again} makes them, out of the ledger what has run"
        raise InvalidInput("table", table, accepted)
    try:
        return Results.from_json(stored(path) or {})
    except ValueError:
        accepted = f"a file that a sweep of this version wrote; `{forced_sweep(table)}` writes it again"
        raise InvalidInput("results", str(path), accepted) from None


def failures(results: Results) -> str:
    """How many runs failed, and what retries them; empty if none did.

    One that diverged has not failed, and would diverge again.
    """
    if not results.failed:
        return ""
    told = f"{len(results.failed)} of {amount(len(results.keys), 'run')} failed"
    return f"{told}; the next `dvc repro` retries them"


def forced_sweep(table: str) -> str:
    """The command that runs a table's sweep stage even if none of its dependencies has changed."""
    return f"dvc repro --force --single-item train-sweep@{table}"


def results(table: str) -> Runs:
    """A table's simulations out of ``results/``, one for each cell and seed, as frames and plots.

    For a searched cell, the simulations of the selected configuration.

    Raises:
        InvalidInput: the table has no results here.
    """
    return Runs(
        tuple(
            Run({"setting": cell.setting, "row": cell.row, "seed": row.seed}, row.metrics, row.measured)
            for cell in load_results(str(table), Path()).cells
            for row in (cell.selected or cell.pinned).rows
        )
    )


def _fields(values: Any) -> dict[str, Any]:
    return {field.name: getattr(values, field.name) for field in dataclasses.fields(values)}


def _configuration_to_json(configuration: ConfigurationResult) -> dict[str, Any]:
    records = {name: [one.to_json() for one in getattr(configuration, name)] for name in _RECORDS}
    return {**_fields(configuration), **records}


def _cell(values: Mapping[str, Any]) -> CellResult:
    return CellResult(
        **{
            **values,
            "pinned": _configuration(values["pinned"]),
            "selected": _configuration(values["selected"]) if values["selected"] else None,
            "search": tuple(SearchResult(**trial) for trial in values["search"]),
            "selection": _selection(values["selection"]) if values["selection"] else None,
            "errors": tuple(values["errors"]),
        }
    )


def _selection(values: Mapping[str, Any]) -> Selection:
    return Selection(values["trial"], tuple(Comparison(**one) for one in values["comparisons"]))


def _configuration(values: Mapping[str, Any]) -> ConfigurationResult:
    records = {name: tuple(map(Record.from_json, values[name])) for name in _RECORDS}
    return ConfigurationResult(**{**values, **records, "failed": tuple(values["failed"])})


_RECORDS = ("rows", "diverged")
