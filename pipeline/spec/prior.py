"""Trials of other searches from which the search of a cell begins, in a file next to the table's.

`pfl search import` writes `<table>.prior.csv`; check and sweep read it, and the sweep stage depends on it.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pfl.core.errors import InvalidInput
from pfl.core.hyper import Hyperparameter
from pfl.core.text import csv_text
from pipeline.algorithms import ALGORITHMS
from pipeline.spec.cells import Cell
from pipeline.spec.paths import table_file
from pipeline.spec.search_space import Search, default_of, pinned_value, searched

COLUMNS = ("cell", "gain", "parameters", "source")


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
    """The imported trials of a table, which need not exist."""
    return table_file(table).with_suffix(".prior.csv")


def prior_text(trials: Iterable[PriorTrial]) -> str:
    """The content of a `prior_file`."""
    return csv_text(COLUMNS, ((t.cell, t.gain, json.dumps(t.params), t.source) for t in trials))


def load_prior(table: str) -> list[PriorTrial]:
    """The imported trials of a table; empty without a file.

    Raises:
        InvalidInput: the file is not one that `prior_text` gives.
    """
    file = prior_file(table)
    if not file.exists():
        return []
    reader = csv.DictReader(io.StringIO(file.read_text(encoding="utf-8")))
    trials = []
    for row in reader:
        try:
            params = dict(json.loads(row["parameters"]))
            trials.append(PriorTrial(row["cell"], float(row["gain"]), params, row["source"]))
        except (KeyError, TypeError, ValueError):
            accepted = "a line that `pfl search import` writes"
            raise InvalidInput(f"{file}, line {reader.line_num}", "its content", accepted) from None
    return trials


def check_prior(table: str, cells: Iterable[Cell]) -> None:
    """Check that every imported trial is a configuration of its cell's search.

    Args:
        cells: all of the table.

    Raises:
        InvalidInput: the first one that is not; import again after an edit of the search space.
    """
    by_id = {cell.id: cell for cell in cells}
    for trial in load_prior(table):
        cell = by_id.get(trial.cell)
        if why := misfit(cell, trial.params) if cell else "the table has no such cell":
            accepted = f"trials that fit the table ({why}); repeat `pfl search import {table}`"
            raise InvalidInput(str(prior_file(table)), f"a trial of {trial.cell}", accepted)


def refusal(search: Search | None) -> str:
    """Why a search takes no imported trials; empty if it does."""
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
    """``params`` without those that the cell does not search, as far as they have the pinned value."""
    assert cell.search
    space = searched(cell.config, cell.search)
    own = {name: value for name, value in params.items() if name in space}
    known = {**cell.config.hyperparameters, **vars(cell.config)}
    return own | {
        name: value for name, value in params.items() if name not in space and known.get(name) != value
    }


def pinned_params(cell: Cell) -> dict[str, Any]:
    """The searched parameters of the pinned configuration."""
    assert cell.search
    return {
        name: pinned_value(cell.config, name)
        for name, declared in searched(cell.config, cell.search).items()
        if declared.active(cell.config.hyperparameters)
    }
