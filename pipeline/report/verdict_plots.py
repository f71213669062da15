"""Plots of our numbers and the printed ones: side by side for a table, as a scatter plot for a paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.report.plots import (
    GRID,
    INK,
    MUTED,
    PAPER,
    WIDTH,
    Look,
    as_svg,
    name_rows,
    panels,
    wide_figure,
)
from pipeline.report.summary import Entry, Summary
from pipeline.report.verdicts import POINTS, Verdict
from pipeline.svg import Axes, Canvas

if TYPE_CHECKING:
    from matplotlib.lines import Line2D

COLOURS = {
    "reproduced": "#2f9e6e",
    "higher": "#3b7dd8",
    "lower": "#e8833a",
    "ratio": MUTED,
    "not comparable": MUTED,
}
MARKERS = {"reproduced": "o", "higher": "^", "lower": "v", "ratio": "o", "not comparable": "s"}

BAND = f", ± {POINTS:g} points"


@as_svg
def side_by_side(summary: Summary) -> Canvas:
    """One panel per setting, one line per method: the printed number and ours."""
    from matplotlib.lines import Line2D

    places = {line.row: -place for place, line in enumerate(summary.pinned)}

    def panel(axes: Axes, entry: Entry, _: Look) -> None:
        place, printed = places[entry.row], entry.published
        assert printed is not None
        if printed.is_accuracy:
            axes.plot([printed.mean - POINTS, printed.mean + POINTS], [place, place], color=GRID, linewidth=7)
        axes.plot(printed.mean, place, "|", color=INK, markersize=9, markeredgewidth=1.6)
        if entry.score and entry.verdict:
            colour = COLOURS[entry.verdict.name]
            axes.plot([printed.mean, entry.score.mean], [place, place], color=colour, linewidth=1)
            axes.errorbar(entry.score.mean, place, xerr=entry.score.std, color=colour, elinewidth=1)
            axes.plot(entry.score.mean, place, **_marker(entry.verdict))

    figure = panels(
        summary,
        panel,
        "Accuracy (%)" if summary.table.evaluation.is_accuracy else "Published and ours",
        "",
        height=0.7 + 0.22 * len(places),
        drawn=lambda entry: entry.published is not None,
    )
    for number, axes in enumerate(figure.axes):
        name_rows(axes, [line.label if number % 3 == 0 else "" for line in summary.pinned])
    banded = any(entry.published.is_accuracy for entry in summary.compared if entry.published)
    name = "published" + (BAND if banded else "")
    printed = Line2D([], [], color=INK, marker="|", linestyle="none", markersize=9, label=name)
    _legend(figure, printed, [entry.verdict for entry in summary.compared if entry.verdict])
    return figure


@as_svg
def scatter(papers: Mapping[str, Sequence[tuple[float, float, Verdict]]]) -> Canvas:
    """One panel per paper: ours against the printed number of every cell that was run.

    Args:
        papers: by name, the printed number of each cell, ours, and the verdict.
    """
    from matplotlib.lines import Line2D

    count = max(3, len(papers))
    figure = wide_figure(WIDTH / count + 0.7)
    grid = figure.subplots(1, count, squeeze=False)[0]
    for axes, (paper, points) in zip(grid, papers.items(), strict=False):
        axes.set_title(paper)
        axes.fill_between([0, 100], [-POINTS, 100 - POINTS], [POINTS, 100 + POINTS], color=GRID, lw=0)
        for published, ours, verdict in points:
            axes.plot(published, ours, **_marker(verdict))
        axes.set(xlim=(0, 100), ylim=(0, 100), aspect="equal", xlabel="Published (%)")
    grid[0].set_ylabel("Ours (%)")
    for axes in grid[len(papers) :]:
        axes.remove()
    level = Line2D([], [], color=GRID, linewidth=7, label=f"equal{BAND}")
    _legend(figure, level, [verdict for points in papers.values() for *_, verdict in points])
    return figure


def _marker(verdict: Verdict) -> dict[str, Any]:
    """How a verdict is drawn: distinguished by colour and shape, hollow if it is provisional."""
    colour = COLOURS[verdict.name]
    return {
        "marker": MARKERS[verdict.name],
        "color": colour,
        "markerfacecolor": PAPER if verdict.provisional else colour,
        "markeredgecolor": colour,
        "markersize": 6,
        "linestyle": "none",
    }


def _legend(figure: Canvas, printed: Line2D, verdicts: Sequence[Verdict]) -> None:
    """The legend: first the marker of the printed numbers, then those of the verdicts that occur."""
    from matplotlib.lines import Line2D

    order = list(COLOURS)
    drawn = {verdict for verdict in verdicts if verdict.name in COLOURS}
    shown = sorted(drawn, key=lambda verdict: (order.index(verdict.name), verdict.provisional))
    handles = [printed]
    for verdict in shown:
        label = f"ours, {verdict.name}" + (" (provisional)" if verdict.provisional else "")
        handles.append(Line2D([], [], **_marker(verdict), label=label))
    figure.legend(handles=handles, loc="outside upper left", ncols=4)
