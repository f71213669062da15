"""Plots of a leaderboard besides its critical-difference diagram: costs, and gains from tuning."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.report.leaderboard import SHOWN, Board, Standing
from pipeline.report.leads import SIGNIFICANT
from pipeline.report.plots import COLOURS, GRID, INK, MUTED, as_svg, name_rows, wide_figure
from pipeline.svg import Axes, Canvas

CAPTIONS = {
    "ranks": "Mean ranks over the pairs of a setting and a seed, 1 being the highest accuracy. Methods on "
    f"one bar do not differ significantly by Nemenyi's test ({100 * SIGNIFICANT:.0f} %).",
    "costs": "Accuracy against what all clients send and receive in a run, and against the wall time of a "
    "run, means over the settings and seeds. The line connects the methods that no other one beats in both. "
    "The wall time depends on the machine's other load.",
    "gains": "Gain from tuning, the method with the best mean rank at the top: mean over the settings, with "
    "its 95 % interval over the seeds. Where no trial was significantly better, the pinned configuration is "
    "kept and the gain is 0.",
}


def draw(board: Board) -> dict[str, str]:
    """SVG text by name; without a search, there are no gains."""
    plots = {"costs": _costs(board)}
    if any(standing.gain for standing in board.standings):
        plots["gains"] = _gains(board)
    return plots


@as_svg
def _costs(board: Board) -> Canvas:
    """Mean accuracy against the traffic and the time of a run."""
    families = dict.fromkeys(standing.family for standing in board.standings)
    colours = {family: COLOURS[place % len(COLOURS)] for place, family in enumerate(families)}
    names = [name for name in SHOWN if name in board.shown]
    figure = wide_figure(4.6)
    panels = figure.subplots(1, len(names), squeeze=False)[0]
    for axes, name in zip(panels, names, strict=True):
        known = [
            (x, standing.accuracy, standing)
            for standing in board.standings
            if (x := standing.quantities[name]) is not None
        ]
        for x, y, standing in known:
            axes.plot(x, y, "o", color=colours[standing.family], markersize=5)
        _front(axes, known)
        axes.set_xlabel(board.columns[name].heading)
    panels[0].set_ylabel("Accuracy (%), mean over the settings")
    for family, colour in colours.items():
        panels[0].plot([], [], "o", color=colour, label=family)
    figure.legend(loc="outside upper left", ncols=6)
    return figure


def _front(axes: Axes, known: Sequence[tuple[float, float, Standing]]) -> None:
    """Join and label the methods that no other one beats in both accuracy and cost."""
    front: list[tuple[float, float, Standing]] = []
    for point in sorted(known, key=lambda point: (point[0], -point[1])):
        if not front or point[1] > front[-1][1]:
            front.append(point)
    costs, accuracies = [point[0] for point in front], [point[1] for point in front]
    axes.step(costs, accuracies, where="post", color=MUTED, linewidth=0.8, zorder=0)
    for cost, accuracy, standing in front:
        axes.annotate(standing.label, (cost, accuracy), (4, 4), textcoords="offset points", color=INK)


@as_svg
def _gains(board: Board) -> Canvas:
    """The gain from tuning by method, with its interval."""
    gains = [(standing, standing.gain) for standing in board.standings if standing.gain]
    figure = wide_figure(0.7 + 0.19 * len(gains))
    axes = figure.subplots()
    axes.axvline(0, color=MUTED, linewidth=0.8)
    for place, (standing, gain) in enumerate(gains):
        colour = COLOURS[1] if standing.tuned else GRID
        if gain.low is not None and gain.high is not None:
            axes.plot([gain.low, gain.high], [-place, -place], color=colour)
        axes.plot(gain.mean, -place, "o", color=colour, markersize=5)
    name_rows(axes, [standing.label for standing, _ in gains])
    axes.set_xlabel("Gain from tuning (percentage points)")
    return figure
