"""How sensitive the weights of the last layer are, class by class (FedCAC, Figure 1b)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pipeline.figures.config import Figure
from pipeline.figures.drawing import Drawing, grid, heat
from pipeline.figures.numbers import Numbers, Point, matrix_points
from pipeline.figures.observers.head_sensitivity import look
from pipeline.figures.runs import Runs
from pipeline.plots import COLOURS

if TYPE_CHECKING:
    from matplotlib import figure as mpl


WEIGHTS, MEAN, KINDS = "weights", "mean of a class", "classes by their samples"


def measure(runs: Runs) -> Numbers:
    """A series a class that the client has, the one with most samples first, by feature, over the largest
    sensitivity of all; the classes' means, apart for the classes with the most and with fewer samples."""
    (per_seed,) = runs.observations(look).values()
    found = np.mean([seen[-1]["sensitivity"] for seen in per_seed], axis=0)
    samples = np.array(per_seed[0][-1]["samples"])
    (dataset,) = runs.datasets.values()
    order = [c for c in np.argsort(-samples, kind="stable") if samples[c]]
    names = [f"{dataset.classes[c]} ({samples[c]:.0f})" for c in order]
    matrix = found[order] / found.max()
    means = [Point(MEAN, name, 0, float(row.mean())) for name, row in zip(names, matrix, strict=True)]
    kinds = [
        Point(KINDS, "most" if samples[c] == samples.max() else "fewer", x, point.value)
        for x, (c, point) in enumerate(zip(order, means, strict=True))
    ]
    return Numbers([*matrix_points(WEIGHTS, names, matrix), *means, *kinds])


def draw(figure: Figure, numbers: Numbers) -> mpl.Figure:
    """A row a class; darker is more sensitive."""
    canvas, (left, right) = grid(2, height=2.8, across=2, width_ratios=(2.4, 1))
    matrix = numbers.matrix(WEIGHTS)
    image = heat(left, matrix, high=float(np.quantile(matrix, 0.99)))
    left.set_title("Weights of the last layer, by class (training samples)")
    left.set_xlabel("Feature")
    left.set_yticks(range(len(matrix)), [*numbers.panels[WEIGHTS]])
    canvas.colorbar(image, ax=left, label="Sensitivity", extend="max")
    means = numbers.panels[MEAN]
    right.barh(range(len(means)), [points[0].value for points in means.values()], color=COLOURS[1])
    right.set_yticks(range(len(means)), [])
    right.invert_yaxis()
    right.grid(axis="y", visible=False)
    right.set_title("Mean over a class")
    return canvas


sensitivities = Drawing(measure, draw)
