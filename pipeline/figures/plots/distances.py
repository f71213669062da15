"""Distances between the clients' heads, round after round (PFedCS, Figure 1)."""

from __future__ import annotations

import numpy as np

from pipeline.figures.drawing import grid, heat
from pipeline.figures.figure import Figure
from pipeline.figures.figure_runs import FigureRuns
from pipeline.figures.numbers import Numbers, Point, matrix_points
from pipeline.figures.probes.head_distances import probe
from pipeline.report.plots import COLOURS
from pipeline.svg import Canvas

GROUPS = "clients with the same classes, and others"
SAME, OTHERS = "same classes", "other classes"


def measure(runs: FigureRuns) -> Numbers:
    """D at the figure's rounds, with a row and a column per client; its mean over pairs at every round."""
    ((_, per_seed),) = runs.measurements(probe)
    rounds = [measurement["round"] for measurement in per_seed[0]]
    shown = set(rounds).intersection(runs.figure.at) or rounds[-1:]
    points, means = [], []
    for together in zip(*per_seed, strict=True):
        number = together[0]["round"]
        matrix = np.mean([measurement["distances"] for measurement in together], axis=0)
        if number in shown:
            names = [f"client {row}" for row in range(len(matrix))]
            points += matrix_points(f"round {number}", names, matrix)
        distinct = ~np.eye(len(matrix), dtype=bool)
        same = np.array(together[0]["same"])
        for series, chosen in ((SAME, same & distinct), (OTHERS, ~same)):
            if chosen.any():
                means.append(Point(GROUPS, series, number, float(matrix[chosen].mean())))
    return Numbers(points + means)


def draw(figure: Figure, numbers: Numbers) -> Canvas:
    """One heat map per round, and the means by round."""
    panels = [panel for panel in numbers.panels if panel != GROUPS]
    canvas, axes = grid(len(panels) + 1, height=3.2)
    for panel, place in zip(panels, axes, strict=False):
        image = heat(place, numbers.matrix(panel))
        place.set_title(f"Distances after {panel}")
        place.set_xlabel("Client")
    axes[0].set_ylabel("Client")
    canvas.colorbar(image, ax=axes[:-1], shrink=0.8, label="Distance over the row's largest")
    for colour, (series, points) in zip(COLOURS[1:], numbers.panels[GROUPS].items(), strict=False):
        values = [point.value for point in points.values()]
        axes[-1].plot(list(points), values, color=colour, label=series.capitalize(), marker="o", markersize=3)
    axes[-1].set_title("Mean over pairs of clients")
    axes[-1].set_xlabel("Round")
    axes[-1].set_ylim(bottom=0)
    axes[-1].legend()
    return canvas
