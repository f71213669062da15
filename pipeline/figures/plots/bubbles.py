"""Partition of the classes over clients: one bubble per class and client."""

from __future__ import annotations

import numpy as np

from pfl.data.partition import of_seed
from pipeline.figures.drawing import grid, labels
from pipeline.figures.figure import Figure
from pipeline.figures.figure_runs import FigureRuns
from pipeline.figures.numbers import Numbers, Point, matrix_points
from pipeline.report.plots import COLOURS
from pipeline.svg import Canvas

CLASSES = "classes of a client"
SIMULATES = False  # the partitions are enough


def measure(runs: FigureRuns) -> Numbers:
    """Samples by class (series) and client (x), training and test together; and the mean number of classes
    that a client has."""
    points, means = [], []
    for setting, division in runs.partitions.items():
        partition = of_seed(division, runs.figure.seeds[0])
        (dataset,) = {runs.datasets[cell.dataset] for cell in runs.cells if cell.setting == setting}
        counts = sum(partition.class_counts(dataset.labels, len(dataset.classes)).values())
        points += matrix_points(setting, dataset.classes, np.asarray(counts).T)
        means.append(Point(CLASSES, setting, 0, float((np.asarray(counts) > 0).sum(1).mean())))
    return Numbers(points + means)


def draw(figure: Figure, numbers: Numbers) -> Canvas:
    """One panel per setting, stacked vertically; equal areas mean equal counts in all panels."""
    panels = [panel for panel in numbers.panels if panel != CLASSES]
    largest = max(numbers.matrix(panel).max() for panel in panels)
    names = labels(figure)
    canvas, axes = grid(len(panels), height=2.8, across=1)
    canvas.set_figwidth(11)
    for panel, place in zip(panels, axes, strict=True):
        counts = numbers.matrix(panel)
        label, client = np.nonzero(counts)
        areas = 160 * counts[label, client] / largest
        place.scatter(client, label, s=areas, color=COLOURS[1], alpha=0.75, linewidths=0)
        mean = numbers.panels[CLASSES][panel][0].value
        place.set_title(f"{names[panel]}: {mean:.1f} classes per client")
        place.set_xlabel("Client")
        place.set_yticks(range(len(counts)), [*numbers.panels[panel]])
        place.invert_yaxis()
        place.margins(x=0.01)
    return canvas
