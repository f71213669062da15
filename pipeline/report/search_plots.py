"""Plots of a search: its cost, and each parameter separately."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import cycle
from typing import Any

from pipeline.report.plots import (
    COLOURS,
    GRID,
    MARKERS,
    Look,
    as_svg,
    legend,
    limited_to_colours,
    logarithmic,
    panels,
    place_legend,
    wide_figure,
)
from pipeline.report.search_tables import last_steps
from pipeline.report.summary import Entry, Summary
from pipeline.spec.cells import cells
from pipeline.spec.search_space import searched
from pipeline.store.results import RecordedStep
from pipeline.svg import Axes, Canvas


def draw(summary: Summary) -> dict[str, str]:
    """Plots of the searches, SVG text by name; none if no trial has a result in the last round."""
    if not any(progress(cell.search) for cell in summary.results.cells):
        return {}
    return {"search": as_svg(cost)(summary), "slices": as_svg(slices)(summary)}


def progress(steps: Sequence[RecordedStep]) -> list[tuple[int, float]]:
    """The samples trained on so far, including diverged trials, and the best accuracy in the last round so
    far, after every step.

    The curve begins with the first such accuracy. Those of earlier rounds and of the comparison's seeds are
    not comparable.
    """
    reached: dict[tuple[int, int], int] = {}
    last = max((step.until for step in steps), default=0)
    total, best, curve = 0, -math.inf, []
    for step in steps:
        if step.samples is None:
            continue
        total += step.samples - reached.get((step.trial, step.seed), 0)
        reached[step.trial, step.seed] = step.samples
        if step.value is not None and (step.until, step.seed) == (last, steps[0].seed):
            best = max(best, step.value)
        if best > -math.inf:
            curve.append((total, best))
    return curve


def cost(summary: Summary) -> Canvas:
    """The best accuracy of each search by the samples that it has trained on."""
    curves = {(cell.setting, cell.row): progress(cell.search) for cell in summary.results.cells}

    def panel(axes: Axes, entry: Entry, look: Look) -> None:
        curve = curves[entry.setting, entry.row]
        spent = [samples / 1e6 for samples, _ in curve]
        axes.step(
            spent, [best for _, best in curve], where="post", color=look.colour, ls=look.dash, marker="."
        )

    drawn = limited_to_colours(summary, lambda entry: curves.get((entry.setting, entry.row)))
    labels = "Training samples (million)", "Best validation accuracy so far (%)"
    figure = panels(summary, panel, *labels, drawn=drawn)
    legend(figure, summary, drawn=drawn)
    return figure


def slices(summary: Summary) -> Canvas:
    """A row of panels per method, a panel per parameter; methods share rows if each has one parameter.

    A marker is a trial at the last round that it reached with the first seed, larger for later rounds; its
    colour and shape are the setting.
    """
    from matplotlib.lines import Line2D

    by_row = {cell.row: cell for cell in cells(summary.id, summary.table) if cell.search}
    rows = [
        [(line, *parameter) for parameter in searched(cell.config, cell.search).items()]
        for line in summary.pinned
        if (cell := by_row.get(line.row)) and cell.search
    ]
    if all(len(row) == 1 for row in rows):
        rows = [[panel for (panel,) in rows[at : at + 3]] for at in range(0, len(rows), 3)]
    figure = wide_figure(1.9 * len(rows) + 0.4)
    grid = figure.subplots(len(rows), max(map(len, rows)), squeeze=False)
    styles: dict[str, dict[str, Any]] = {
        name: {"color": colour, "marker": marker}
        for name, colour, marker in zip(summary.settings, cycle(COLOURS), cycle(MARKERS), strict=False)
    }
    for row, places in zip(rows, grid, strict=True):
        for axes in places[len(row) :]:
            axes.remove()
        labelled = ""
        for axes, (line, name, declared) in zip(places, row, strict=False):
            of_method = [result for result in summary.results.cells if result.row == line.row]
            for result in of_method:
                shown = [step for step in last_steps(result.search) if name in step.params]
                axes.scatter(
                    [step.params[name] for step in shown],
                    [step.value for step in shown],
                    s=[30 * step.until / max(other.until for other in shown) for step in shown],
                    alpha=0.7,
                    **styles[result.setting],
                )
            if declared.choices is None:
                for end in declared.search or ():
                    axes.axvline(end, color=GRID, zorder=0)
            if declared.log:
                logarithmic(axes)
            axes.set_xlabel(name)
            if line.label != labelled:
                labelled = line.label
                axes.set_ylabel(f"{labelled} (%)")
    handles = {label: Line2D([], [], ls="none", **styles[name]) for name, label in summary.settings.items()}
    place_legend(figure, handles)
    return figure
