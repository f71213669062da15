"""Similarity of heads that were trained on given classes (pFedSim, Figure 2)."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from pipeline.figures.drawing import grid, heat
from pipeline.figures.figure import Figure
from pipeline.figures.figure_runs import FigureRuns
from pipeline.figures.numbers import Numbers, Point
from pipeline.figures.probes.head_cosines import probe
from pipeline.svg import Canvas

NAMES = ("i", "i'", "j", "k")
WHOLE, CLASSES, KINDS = "whole heads", "class by class", "classes by owners"


def measure(runs: FigureRuns) -> Numbers:
    """For every pair of clients, the mean cosine and the cosine of every class. Also the cosines of the
    classes that both or neither of a pair has, and of those that only one has."""
    ((_, per_seed),) = runs.measurements(probe)
    cosines = np.mean([measurements[-1]["cosines"] for measurements in per_seed], axis=0)
    owns = np.array(per_seed[0][-1]["owns"])
    points: list[Point] = []
    classes: list[Point] = []
    kinds: list[Point] = []
    for first, second in combinations(range(min(len(NAMES), len(owns))), 2):
        pair, of_pair = f"{NAMES[first]}, {NAMES[second]}", cosines[:, first, second]
        points.append(Point(WHOLE, pair, 0, float(of_pair.mean())))
        classes += [Point(CLASSES, pair, c, float(value)) for c, value in enumerate(of_pair)]
        alike = owns[first] == owns[second]
        for kind, chosen in (("both or neither", alike), ("one only", ~alike)):
            numbered = enumerate(of_pair[chosen], start=len(kinds))
            kinds += [Point(KINDS, kind, number, float(value)) for number, value in numbered]
    return Numbers(points + classes + kinds)


def draw(figure: Figure, numbers: Numbers) -> Canvas:
    """The cosines of whole heads as a matrix, and those of the classes with a row per pair."""
    canvas, (left, right) = grid(2, height=3.4, across=2, width_ratios=(1, 1.7))
    matrix = np.eye(len(NAMES))
    for pair, points in numbers.panels[WHOLE].items():
        first, second = map(NAMES.index, pair.split(", "))
        matrix[first, second] = matrix[second, first] = points[0].value
    heat(left, matrix)
    left.set_title("Mean over the classes")
    left.set_xticks(range(len(NAMES)), NAMES)
    left.set_yticks(range(len(NAMES)), NAMES)
    by_class = numbers.matrix(CLASSES)
    image = heat(right, by_class, low=min(0.0, float(by_class.min())))
    right.set_title("Class by class")
    right.set_xlabel("Class")
    right.set_xticks(range(by_class.shape[1]))
    right.set_yticks(range(len(by_class)), [f"({pair})" for pair in numbers.panels[CLASSES]])
    canvas.colorbar(image, ax=right, label="Cosine of the heads")
    return canvas
