"""Import of another search's trials: which of them fit the searches of a table."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pfl.core.errors import InvalidInput
from pfl.core.files import write_text
from pfl.core.text import amount, listed
from pipeline.spec.cells import Cell, cells
from pipeline.spec.csv_file import number, read_csv
from pipeline.spec.imported_trials import (
    PriorTrial,
    misfit,
    pinned_params,
    prior_file,
    prior_text,
    refusal,
    without_pinned,
)
from pipeline.spec.paths import table_names
from pipeline.spec.table import load_table
from pipeline.store.results import SEARCH_COLUMNS, RecordedStep
from pipeline.sweep.collection import results_of

OtherSearch = tuple[str | None, Sequence[RecordedStep]]
"""The method of a cell in another table, None if unknown, and the steps of its search."""


def import_trials(table: str, sources: Sequence[str]) -> list[str]:
    """Write the trials of other searches that fit a table to its `prior_file`, and return what was taken.

    A cell takes trials of the cell with the same setting and row names, if the method is the same. Only
    trials that ran to the last round, and whose parameters are a configuration of the cell's search, are
    taken. Their accuracies are relative to that of the cell's pinned configuration, which the other search
    must have tried, so its data and rounds may differ.

    Args:
        sources: tables with results, or `search.csv` files of reports.

    Raises:
        InvalidInput: a source has no searches, or no trial fits. In that case, no file is written.
    """
    wanted = cells(table, load_table(table))
    taken: list[PriorTrial] = []
    lines, outcomes = [], dict[str, list[str]]()
    for source in sources:
        searches, name = _searches(source), _name(source)
        for cell in wanted:
            known = [trial.params for trial in taken if trial.cell == cell.id]
            trials, comment = _fitting(cell, searches.get(cell.id), name, known)
            taken += trials
            outcome = f"{amount(len(trials), 'trial')} of {name}{comment}"
            lines.append(f"{cell.id}: {outcome}")
            outcomes.setdefault(outcome, []).append(cell.id)
    if not taken:
        reasons = "; ".join(f"{listed(names)}: {outcome}" for outcome, names in outcomes.items())
        raise InvalidInput("--from", ", ".join(sources), f"a search with trials that fit ({reasons})")
    write_text(prior_file(table), prior_text(taken))
    return [*lines, f"{prior_file(table)}: {amount(len(taken), 'trial')}; commit it with the table"]


def _fitting(
    cell: Cell, other: OtherSearch | None, source: str, known: Sequence[Mapping[str, Any]]
) -> tuple[list[PriorTrial], str]:
    """The trials that a cell takes in addition to those with the ``known`` parameters, and a comment on those
    that it leaves out."""
    if why := refusal(cell.search):
        return [], f": {why}"
    if other is None:
        return [], ": no such cell"
    method, steps = other
    if method not in (None, cell.config.method):
        return [], f": the method is {method}"
    last = max(step.until for step in steps)
    own = {step.trial: step for step in steps if step.seed == steps[0].seed}
    ended = {trial: step for trial, step in own.items() if step.until == last and step.value is not None}
    params = {trial: without_pinned(cell, step.params) for trial, step in ended.items()}
    pinned = pinned_params(cell)
    base = next((step.value for trial, step in ended.items() if params[trial] == pinned), None)
    if base is None:
        return [], ": the pinned configuration is not among them"
    reasons = Counter({"not trained to the last round": len(own) - len(ended)})
    trials = []
    for trial, step in ended.items():
        if why := misfit(cell, params[trial]):
            reasons[why] += 1
        elif params[trial] in known:
            reasons["already taken"] += 1
        elif params[trial] != pinned and step.value is not None:
            gain = round(step.value - base, 4)
            trials.append(PriorTrial(cell.id, gain, params[trial], f"{source}, trial {trial}"))
    left_out = ", ".join(f"{why} ({count})" for why, count in reasons.items() if count)
    return trials, f"; left out: {left_out}" if left_out else ""


def _name(source: str) -> str:
    """How the table's `prior_file` names a source: files of the project by their relative path."""
    path = Path(source)
    if not path.is_absolute():
        return source
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else path.name


def _searches(source: str) -> dict[str, OtherSearch]:
    """The searches of a table or of a file, by cell."""
    if source not in table_names():
        return {cell: (None, steps) for cell, steps in _by_cell(Path(source)).items()}
    results = results_of(source)
    methods = {row.id: row.method for row in results.config.methods}
    searches: dict[str, OtherSearch] = {
        cell.cell: (methods[cell.row], cell.search) for cell in results.cells if cell.search
    }
    if not searches:
        raise InvalidInput("--from", source, "a table with a search")
    return searches


def _by_cell(file: Path) -> dict[str, list[RecordedStep]]:
    """The steps in a file that `pipeline.report.search_tables.rows` has written."""
    if not file.is_file():
        raise InvalidInput("--from", str(file), "a table with results, or a file search.csv of a report")
    cells: dict[str, list[RecordedStep]] = {}
    for cell, step in read_csv(file, _step, SEARCH_COLUMNS):
        cells.setdefault(cell, []).append(step)
    if not cells:
        raise InvalidInput("--from", str(file), "a file with at least one trial")
    return cells


def _step(row: Mapping[str, str]) -> tuple[str, RecordedStep]:
    """The cell and the step of a line."""
    return row["cell"], RecordedStep(
        trial=int(row["trial"]),
        seed=int(row["seed"]),
        until=int(row["round"]),
        params=dict(json.loads(row["parameters"])),
        value=number(row["accuracy"]) if row["accuracy"] else None,
        samples=int(row["samples"]) if row["samples"] else None,
        error=row["error"] or None,
    )
