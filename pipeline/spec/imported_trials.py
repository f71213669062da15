"""Trials of other searches, from which a cell's search begins, in a file next to the table's.

`pfl search import` writes `<table>.prior.csv`; check and sweep read it, and the sweep stage depends on it. A
table without such a file inherits the trials of the table that it extends.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pfl.core.errors import InvalidInput
from pfl.core.hyper import Hyperparameter
from pipeline.algorithms import ALGORITHMS
from pipeline.formatting import csv_text
from pipeline.spec.cells import Cell, cells
from pipeline.spec.csv_file import number, read_csv
from pipeline.spec.extends import lineage
from pipeline.spec.paths import table_file
from pipeline.spec.search_space import Search, default_of, pinned_value, searched
from pipeline.spec.table import load_table

COLUMNS = ("cell", "gain", "parameters", "source")
SUFFIX = ".prior.csv"


@dataclass(frozen=True)
class PriorTrial:
    """A trial of another search.

    Attributes:
        gain: its accuracy minus that of the cell's pinned configuration in the other search, in points.
        params: all parameters that the cell's search has.
        source: the other search, and the trial's number there.
    """

    cell: str
    gain: float
    params: Mapping[str, Any]
    source: str


def prior_file(table: str) -> Path:
    """The file of a table's own imported trials, which need not exist."""
    return table_file(table).with_suffix(SUFFIX)


def prior_files(table: str) -> list[Path]:
    """The files of imported trials of a table and of those that it extends, the base first.

    The last one is used.
    """
    files = (source.file.with_suffix(SUFFIX) for source in lineage(table))
    return [file for file in files if file.exists()]


def prior_text(trials: Iterable[PriorTrial]) -> str:
    """The content of a `prior_file`."""
    return csv_text(COLUMNS, ((t.cell, t.gain, json.dumps(t.params), t.source) for t in trials))


def imported_trials(whole: Sequence[Cell]) -> dict[str, list[PriorTrial]]:
    """The trials from which the searches of a table begin, by cell.

    Trials are inherited by cells with the same method and pinned parameters, on which their gains are based,
    if they are configurations of the cell's search.

    Args:
        whole: cells of one table.

    Raises:
        InvalidInput: a line of the file is not in the format of `prior_text`.
    """
    if not whole or not (files := prior_files(whole[0].table)):
        return {}
    trials: dict[str, list[PriorTrial]] = {}
    for trial in read_csv(files[-1], _trial, COLUMNS):
        trials.setdefault(trial.cell, []).append(trial)
    owner = files[-1].name.removesuffix(SUFFIX)
    if owner == whole[0].table:
        return trials
    bases = {cell.id: _basis(cell) for cell in cells(owner, load_table(owner)) if cell.search}
    return {
        cell.id: [trial for trial in trials[cell.id] if not misfit(cell, trial.params)]
        for cell in whole
        if cell.id in trials and cell.search and bases.get(cell.id) == _basis(cell)
    }


def _trial(row: Mapping[str, str]) -> PriorTrial:
    return PriorTrial(row["cell"], number(row["gain"]), dict(json.loads(row["parameters"])), row["source"])


def _basis(cell: Cell) -> tuple[str, dict[str, Any]]:
    """What the gains of imported trials are relative to: the method and the pinned parameters."""
    return cell.config.method, pinned_params(cell)


def check_prior(table: str, whole: Sequence[Cell]) -> None:
    """Check that each of a table's own imported trials is a configuration of its cell's search.

    Args:
        whole: all cells of the table.

    Raises:
        InvalidInput: for the first one that is not; import again after editing the search space.
    """
    by_id = {cell.id: cell for cell in whole}
    for name, trials in imported_trials(whole).items():
        cell = by_id.get(name)
        for trial in trials:
            if why := misfit(cell, trial.params) if cell else "the table has no such cell":
                accepted = f"trials that fit the table ({why}); repeat `pfl search import {table}`"
                raise InvalidInput(str(prior_file(table)), f"a trial of {name}", accepted)


def refusal(search: Search | None) -> str:
    """Why a search does not accept imported trials; empty if it does."""
    if search is None:
        return "the cell has no search"
    if search.has_several_objectives:
        return "the search has several objectives"
    if not ALGORITHMS[search.algorithm].uses_imported:
        return f"the algorithm {search.algorithm} does not use results of other searches"
    return ""


def misfit(cell: Cell, params: Mapping[str, Any]) -> str:
    """Why ``params`` are not a configuration of a cell's search; empty if they are."""
    if (why := refusal(cell.search)) or cell.search is None:
        return why
    space = searched(cell.config, cell.search)
    values = {**cell.config.hyperparameters, **params}
    active = {name for name, declared in space.items() if declared.active(values)}
    for name in sorted(params.keys() ^ active):
        return f"{name} is not searched" if name in params else f"{name} is searched here"
    for name, value in params.items():
        if not _lies_in(space[name], value, default_of(cell.config.method, name)):
            return f"{name} lies outside its range"
    return ""


def _lies_in(declared: Hyperparameter, value: Any, default: Any) -> bool:
    assert declared.search is not None
    if declared.choices is not None:
        return value in declared.search
    kinds = int if isinstance(default, int) else (int, float)
    low, high = declared.search
    return isinstance(value, kinds) and not isinstance(value, bool) and low <= value <= high


def without_pinned(cell: Cell, params: Mapping[str, Any]) -> dict[str, Any]:
    """``params`` without those that the cell does not search and that have the pinned value."""
    assert cell.search
    space = searched(cell.config, cell.search)
    known = {**cell.config.hyperparameters, **vars(cell.config)}
    return {name: value for name, value in params.items() if name in space or known.get(name) != value}


def pinned_params(cell: Cell) -> dict[str, Any]:
    """The searched parameters of the pinned configuration."""
    assert cell.search
    return {
        name: pinned_value(cell.config, name)
        for name, declared in searched(cell.config, cell.search).items()
        if declared.active(cell.config.hyperparameters)
    }
