"""Similarity of the layers of independently trained models (pFedSim, Figure 1)."""

from __future__ import annotations

import numpy as np

from pipeline.figures.drawing import grid, heat
from pipeline.figures.figure import Figure
from pipeline.figures.figure_runs import FigureRuns
from pipeline.figures.numbers import Numbers, Point, matrix_points
from pipeline.figures.probes.alignments import probe
from pipeline.report.plots import COLOURS
from pipeline.svg import Canvas

MEAN = "mean over pairs of models"


def measure(runs: FigureRuns) -> Numbers:
    """One panel per layer, from 0, with a row and a column per model; and the layers' means over pairs."""
    ((_, per_seed),) = runs.measurements(probe)
    matrices = {
        f"layer {number} ({name})": np.mean([measurements[-1][name] for measurements in per_seed], axis=0)
        for number, name in enumerate(per_seed[0][-1])
    }
    points, means = [], []
    for panel, matrix in matrices.items():
        points += matrix_points(panel, [f"model {row}" for row in range(len(matrix))], matrix)
        pairs = matrix[~np.eye(len(matrix), dtype=bool)]
        means.append(Point(MEAN, panel.partition(" (")[0], 0, float(pairs.mean())))
    return Numbers(points + means)


def draw(figure: Figure, numbers: Numbers) -> Canvas:
    """One heat map per layer, and bars of the means."""
    panels = [panel for panel in numbers.panels if panel != MEAN]
    canvas, axes = grid(len(panels) + 1, height=3.0)
    for panel, place in zip(panels, axes, strict=False):
        matrix = numbers.matrix(panel)
        image = heat(place, matrix)
        place.set_title(panel[0].upper() + panel[1:])
        place.set_xticks(range(len(matrix)))
        place.set_yticks(range(len(matrix)))
    canvas.colorbar(image, ax=axes[:-1], shrink=0.6, label="CKA")
    means = numbers.panels[MEAN]
    axes[-1].bar(list(means), [points[0].value for points in means.values()], color=COLOURS[1], width=0.6)
    axes[-1].set_ylim(0, 1)
    axes[-1].set_title(MEAN.capitalize())
    axes[-1].tick_params(axis="x", rotation=30)
    return canvas
