"""The Pareto fronts of searches with several objectives, as a plot per objective and a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.columns import COLUMNS
from pipeline.report.plots import Look, as_svg, legend, panels
from pipeline.report.summary import Entry, Summary
from pipeline.spec.objectives import goals, others
from pipeline.store.scores import reported
from pipeline.svg import Axes, Canvas


@dataclass(frozen=True)
class FrontPoint:
    """A trial of a search that ran to the last round.

    Attributes:
        trial: 0 is the pinned configuration.
        values: by objective, on validation data.
        key: key of the record behind the values.
        is_on_front: whether no other trial of the cell dominates it.
    """

    label: str
    setting: str
    trial: int
    params: Mapping[str, Any]
    values: Mapping[str, float]
    key: str
    is_on_front: bool

    @property
    def shown(self) -> list[str]:
        """The values as a table shows them."""
        return [f"{value:,.2f}" for value in self.values.values()]


def fronts(summary: Summary) -> dict[tuple[str, ...], list[FrontPoint]]:
    """The non-dominated trials of every cell, by objectives, the highest accuracy of a cell first."""
    searches: dict[tuple[str, ...], list[FrontPoint]] = {}
    for line in summary.selected:
        for setting in line.entries:
            points = _points(summary, setting, line.row)
            for point in sorted(points, key=lambda point: -point.values["accuracy"]):
                if point.is_on_front:
                    searches.setdefault(tuple(point.values), []).append(point)
    return searches


def headings(objectives: Sequence[str]) -> list[str]:
    """The headings of the objectives' columns."""
    return ["Accuracy (%)", *(COLUMNS[name].heading for name in objectives[1:])]


def draw(summary: Summary) -> dict[str, str]:
    """A plot for each objective other than accuracy, SVG text by name; none for a single objective."""
    names = dict.fromkeys(name for objectives in fronts(summary) for name in objectives[1:])
    return {f"front-{name}": as_svg(front)(summary, name) for name in names}


def front(summary: Summary, name: str) -> Canvas:
    """Accuracy against another objective: a marker per trial, and a line through the front."""
    trials = {
        (cell.setting, cell.row): [
            point for point in _points(summary, cell.setting, cell.row) if name in point.values
        ]
        for cell in summary.results.cells
    }

    def drawn(entry: Entry) -> list[FrontPoint]:
        return trials.get((entry.setting, entry.row), [])

    def panel(axes: Axes, entry: Entry, look: Look) -> None:
        points = drawn(entry)
        every = [(point.values[name], point.values["accuracy"]) for point in points]
        best = sorted(place for place, point in zip(every, points, strict=True) if point.is_on_front)
        axes.plot(*zip(*every, strict=True), look.marker, color=look.colour, alpha=0.35, markersize=4)
        axes.plot(*zip(*best, strict=True), look.marker, ls=look.dash, color=look.colour, markersize=6)

    figure = panels(summary, panel, COLUMNS[name].heading, "Validation accuracy (%)", drawn=drawn)
    legend(figure, summary, drawn=drawn)
    return figure


def _points(summary: Summary, setting: str, row: str) -> list[FrontPoint]:
    """The trials of a cell that ran to the last round with the first seed; none for a single objective."""
    search = summary.table.searches.get(row)
    cell = next((cell for cell in summary.results.cells if cell.cell == f"{setting}/{row}"), None)
    if not cell or not search or not search.has_several_objectives:
        return []
    runs = [
        (trial, record, (reported(record, cell.evaluation), *others(search.objectives, record)))
        for trial in cell.searched
        for record in trial.successes
        if record.seed == cell.search[0].seed and record.until is None
    ]
    signs = [1 if goal == "minimize" else -1 for goal in goals(search.objectives)]
    losses = np.array([values for *_, values in runs]).reshape(-1, len(signs)) * signs
    return [
        FrontPoint(
            label=summary.labels[row],
            setting=summary.columns[setting],
            trial=trial.number or 0,
            params=trial.params,
            values=dict(zip(search.objectives, values, strict=True)),
            key=record.key,
            is_on_front=not ((losses <= loss).all(axis=1) & (losses < loss).any(axis=1)).any(),
        )
        for (trial, record, values), loss in zip(runs, losses, strict=True)
    ]
