"""Accuracy of every client: one panel per setting, one series per method."""

from __future__ import annotations

from pipeline.figures.drawing import averaged, line_plot
from pipeline.figures.figure import Figure
from pipeline.figures.figure_runs import FigureRuns
from pipeline.figures.numbers import Numbers
from pipeline.store.scores import client_accuracies
from pipeline.svg import Canvas


def measure(runs: FigureRuns) -> Numbers:
    """Every client's accuracy in the last round, at the method's own moment; clients are numbered from 1."""
    points = []
    for cell, records in runs.records():
        for client, values in sorted(client_accuracies(records).items()):
            points.append(averaged(cell.setting, cell.row, client + 1, values))
    return Numbers(points)


def draw(figure: Figure, numbers: Numbers) -> Canvas:
    """Lines over the clients, as in SPFL."""
    from matplotlib.ticker import MaxNLocator

    canvas = line_plot(figure, numbers, "Client", across=2, marker="o")
    for place in canvas.axes:
        place.xaxis.set_major_locator(MaxNLocator(integer=True))
    return canvas
