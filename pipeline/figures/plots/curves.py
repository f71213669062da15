"""Accuracy by round: one panel per setting, one line per method."""

from __future__ import annotations

from pipeline.figures.drawing import averaged, line_plot
from pipeline.figures.figure import Figure
from pipeline.figures.figure_runs import FigureRuns
from pipeline.figures.numbers import Numbers
from pipeline.store.scores import curves
from pipeline.svg import Canvas


def measure(runs: FigureRuns) -> Numbers:
    """The accuracy that the figure's evaluation names, at every evaluation."""
    return Numbers(
        [
            averaged(cell.setting, cell.row, number, values)
            for cell, records in runs.records()
            for number, values in curves(records, cell.evaluation)
        ]
    )


def draw(figure: Figure, numbers: Numbers) -> Canvas:
    """Lines over the rounds, as in the papers."""
    return line_plot(figure, numbers, "Round", across=2 if len(numbers.panels) == 4 else 3)
