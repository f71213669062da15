"""The outcome of a search: its decision, the important parameters, and ranges that were too narrow."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pfl.core.hyper import Hyperparameter
from pfl.core.text import amount, distinct, parameter
from pfl.methods import METHODS
from pipeline.columns import COLUMNS
from pipeline.formatting import csv_text, gain
from pipeline.report.formats import grouped
from pipeline.report.summary import Entry, Summary
from pipeline.spec.cells import Cell, cells
from pipeline.spec.search_space import PINNED_TRIAL, distribution, searched
from pipeline.store.results import SEARCH_COLUMNS, CellResult, RecordedStep

EDGE = 0.05
"""A value within this fraction of its range from an end counts as being at the end."""

ADAPTATION = {
    "fedbabu": "finetune_epochs",
    "fedrep": "final_head_epochs",
    "fedupdate": "steps",
    "perfedavg": "adapt_epochs",
    "spfl": "finetune_steps",
}
"""The hyperparameter, by method, that sets how long a model trains before the evaluation "adapted"."""

ENOUGH = 10
"""Minimum number of trials at the first rung for computing the importance of parameters."""


@dataclass(frozen=True)
class Searched:
    """The search of one cell.

    Attributes:
        pins: whether the pinned configuration was selected.
        trials: number of configurations tried.
        validation: accuracies of the pinned and the selected configuration, in percent: means over the seeds
            of the comparison or, without one, with the seed of the trials.
        gain: gain of the best trial, with its standard error; "" without a comparison.
        notes: on importance, imported trials, ranges that bound the best trial, and a searched length of
            training before the evaluation.
    """

    label: str
    setting: str
    pins: bool
    trials: int
    pinned: Entry
    selected: Entry
    validation: tuple[float | None, float | None]
    gain: str
    notes: tuple[str, ...]


def searches(summary: Summary) -> list[Searched]:
    """The searches whose selected configuration has a result, row by row."""
    results = {(cell.setting, cell.row): cell for cell in summary.results.cells}
    places = {(cell.setting, cell.row): cell for cell in cells(summary.id, summary.table)}
    pinned = {(entry.setting, entry.row): entry for line in summary.pinned for entry in line.entries.values()}
    ended = []
    for line in summary.selected:
        for name, entry in line.entries.items():
            place = (name, line.row)
            result = results.get(place)
            if entry.successes and result and result.search and result.selection:
                trial, steps = result.selection.trial, result.search
                ended.append(
                    Searched(
                        label=line.label,
                        setting=summary.columns[name],
                        pins=trial == PINNED_TRIAL,
                        trials=len({step.trial for step in steps}),
                        pinned=pinned[place],
                        selected=entry,
                        validation=(_validation(steps, PINNED_TRIAL), _validation(steps, trial)),
                        gain=_gain(result),
                        notes=tuple(_notes(steps, places[place], result.imported)),
                    )
                )
    return ended


def kept(searched: Sequence[Searched]) -> str:
    """The cells that kept the pinned configuration, with the gain of the best trial; empty if none did."""
    cells = [(search.label, f"{search.setting} {search.gain}".strip()) for search in searched if search.pins]
    if not cells:
        return ""
    number = f"{len(cells)} of {amount(len(searched), 'cell')}"
    return f"{number} kept the pinned configuration: {grouped(cells)}."


def rows(summary: Summary) -> str:
    """Every step of every search, as CSV, with the samples since the first round of its trial.

    The last columns are the objectives other than accuracy.
    """
    searches = summary.table.searches.values()
    others = list(dict.fromkeys(name for search in searches for name in search.objectives[1:]))
    rows = []
    for cell in summary.results.cells:
        records = [record for trial in cell.searched for record in trial.records]
        for step, record in zip(cell.search, records, strict=True):
            value = None if step.value is None else round(step.value, 4)
            parameters = json.dumps(step.params, sort_keys=True)
            place = (cell.cell, step.trial, step.seed, step.until)
            quantities = [None if record.failure else COLUMNS[name].quantity(record) for name in others]
            rows.append([*place, value, step.samples, parameters, step.error, *quantities])
    return csv_text((*SEARCH_COLUMNS, *distinct("column_", dict.fromkeys(others), SEARCH_COLUMNS)), rows)


def last_steps(steps: Sequence[RecordedStep]) -> list[RecordedStep]:
    """The last step with a value of every trial, for the first seed."""
    own = {step.trial: step for step in steps if step.seed == steps[0].seed and step.value is not None}
    return list(own.values())


def _validation(steps: Sequence[RecordedStep], trial: int) -> float | None:
    last = max(step.until for step in steps)
    values = {
        step.seed: step.value
        for step in steps
        if (step.trial, step.until) == (trial, last) and step.value is not None
    }
    compared = [value for seed, value in values.items() if seed != steps[0].seed] or [*values.values()]
    return statistics.fmean(compared) if compared else None


def _gain(result: CellResult) -> str:
    if not result.selection or not result.selection.comparisons:
        return ""
    (compared,) = result.selection.comparisons
    return gain(compared.gain, compared.error)


def _notes(steps: Sequence[RecordedStep], cell: Cell, imported: int) -> list[str]:
    assert cell.search
    space = searched(cell.config, cell.search)
    notes = [f"began from {amount(imported, 'imported trial')}"] if imported else []
    completed = [step for step in last_steps(steps) if step.until == cell.config.rounds]
    best = max(completed, key=lambda step: step.value or 0.0, default=None)
    for name, value in (best.params if best else {}).items():
        end = edge(space[name], value)
        if end:
            notes.append(f"widen {name}: the best trial ({parameter(value)}) is at its {end} end")
    shares = importance(steps, space, cell.config.method)
    moment = cell.evaluation.moment_of(METHODS[cell.config.method].headline)
    adaptation = ADAPTATION.get(cell.config.method)
    if adaptation in space and moment == "adapted":
        notes.append(
            f"{adaptation} is searched: "
            "part of a gain may come from longer training right before the evaluation"
        )
    if shares:
        notes.insert(0, "importance: " + ", ".join(f"{name} {share:.2f}" for name, share in shares.items()))
    return notes


def edge(declared: Hyperparameter, value: Any) -> str:
    """The end of a search range at which ``value`` lies: "lower", "upper", or "" for neither.

    An end of the range that is also an end of the domain does not count, since it cannot be widened; nor does
    1 if 0 stands for something else, as in "0 means the configuration's".
    """
    if declared.choices is not None or declared.search is None:
        return ""
    low, high = declared.search
    lowest = 1 if declared.low == 0 and "0 means" in declared.about else declared.low
    scale = math.log if declared.log and value > 0 else float
    place = (scale(value) - scale(low)) / (scale(high) - scale(low))
    if place < EDGE and low not in (declared.low, lowest):
        return "lower"
    return "upper" if place > 1 - EDGE and high != declared.high else ""


def importance(
    steps: Sequence[RecordedStep], space: Mapping[str, Hyperparameter], method: str
) -> dict[str, float]:
    """Each parameter's share of the variation of the accuracy at the first rung, by Optuna's PED-ANOVA; empty
    for too few trials."""
    import optuna

    first = [step for step in steps if step.until == steps[0].until and step.seed == steps[0].seed]
    complete = [step for step in first if step.value is not None and step.params.keys() == space.keys()]
    if len(complete) < ENOUGH or len({step.value for step in complete}) == 1:
        return {}
    distributions = {name: distribution(method, name, declared) for name, declared in space.items()}
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize")
    for step in complete:
        params = dict(step.params)
        if not any(space[name].log and value <= 0 for name, value in params.items()):
            study.add_trial(
                optuna.trial.create_trial(params=params, distributions=distributions, value=step.value)
            )
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    importances = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {name: share for name, share in importances.items() if np.isfinite(share)}
