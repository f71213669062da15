"""Sensitivity of the weights of the last layer, class by class (FedCAC, Figure 1b)."""

from __future__ import annotations

import numpy as np

from pipeline.figures.drawing import averaged, grid, heat
from pipeline.figures.figure import Figure
from pipeline.figures.figure_runs import FigureRuns
from pipeline.figures.numbers import Numbers, Point, matrix_points
from pipeline.figures.probes.head_sensitivity import probe
from pipeline.report.plots import COLOURS, MUTED
from pipeline.svg import Canvas

WEIGHTS, MEAN, KINDS = "weights", "mean of a class", "classes by their samples"


def measure(runs: FigureRuns) -> Numbers:
    """Sensitivity by feature, relative to the maximum, for the first seed: one series per class of the
    client, in descending order of samples. Also the classes' means over all seeds, the lowest mean of the
    classes with the most samples, and the highest of the others."""
    ((_, per_seed),) = runs.measurements(probe)
    relative = np.array([measurements[-1]["sensitivity"] for measurements in per_seed])
    relative /= relative.max((1, 2), keepdims=True)
    samples = np.array(per_seed[0][-1]["samples"])
    (dataset,) = runs.datasets.values()
    order = [c for c in np.argsort(-samples, kind="stable") if samples[c]]
    names = [f"{dataset.classes[c]} ({samples[c]:.0f})" for c in order]
    means = [
        averaged(MEAN, name, 0, relative[:, c].mean(1).tolist()) for name, c in zip(names, order, strict=True)
    ]
    of_most = [samples[c] == samples.max() for c in order]
    kinds = [
        Point(KINDS, name, 0, extreme(values))
        for name, extreme, wanted in (
            ("lowest mean of the classes with most samples", min, True),
            ("highest mean of the other classes", max, False),
        )
        if (
            values := [
                point.value for point, most in zip(means, of_most, strict=True) if bool(most) is wanted
            ]
        )
    ]
    return Numbers([*matrix_points(WEIGHTS, names, relative[0, order]), *means, *kinds])


def draw(figure: Figure, numbers: Numbers) -> Canvas:
    """One row per class; darker is more sensitive."""
    canvas, (left, right) = grid(2, height=2.8, across=2, width_ratios=(2.4, 1))
    matrix = numbers.matrix(WEIGHTS)
    image = heat(left, matrix, high=float(np.quantile(matrix, 0.99)))
    left.set_title("Weights of the last layer, by class (training samples)")
    left.set_xlabel("Feature")
    left.set_yticks(range(len(matrix)), [*numbers.panels[WEIGHTS]])
    canvas.colorbar(image, ax=left, label="Sensitivity", extend="max")
    means = numbers.panels[MEAN]
    values = [points[0] for points in means.values()]
    spread = [point.std or 0.0 for point in values]
    right.barh(
        range(len(means)), [point.value for point in values], xerr=spread, color=COLOURS[1], ecolor=MUTED
    )
    right.set_yticks(range(len(means)), [])
    right.invert_yaxis()
    right.grid(axis="y", visible=False)
    right.set_title("Mean over a class and seeds")
    return canvas
