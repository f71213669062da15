"""Accuracy against a hyperparameter, or against the number of clients."""

from __future__ import annotations

from pfl.core.errors import InvalidInput
from pipeline.figures.drawing import averaged, line_plot
from pipeline.figures.figure import Figure
from pipeline.figures.figure_runs import FigureRuns
from pipeline.figures.numbers import Numbers
from pipeline.spec.cells import Cell
from pipeline.store.scores import reported
from pipeline.svg import Canvas


def measure(runs: FigureRuns) -> Numbers:
    """Over a hyperparameter, one panel per setting and one series per method; over clients, one
    panel per data set and one series per row.

    Raises:
        InvalidInput: the figure does not name its x axis, or a row has no such hyperparameter.
    """
    places = {cell.id: _place(cell, runs.figure.x) for cell in runs.cells}
    return Numbers(
        [
            averaged(*places[cell.id], [reported(record, cell.evaluation) for record in records])
            for cell, records in runs.records()
            if records
        ]
    )


def _place(cell: Cell, x: str | None) -> tuple[str, str, float]:
    """Panel, series and x of a cell."""
    if x == "clients":
        assert cell.clients is not None
        return cell.dataset, cell.row, cell.clients
    parameters = cell.config.hyperparameters
    if x is None or x not in parameters:
        raise InvalidInput("x", x, f"clients, or a hyperparameter of {cell.config.method}")
    return cell.setting, cell.config.method, parameters[x]


def draw(figure: Figure, numbers: Numbers) -> Canvas:
    """Lines over x."""
    label = "Number of clients" if figure.x == "clients" else str(figure.x)
    return line_plot(figure, numbers, label, height=3.0, marker="o")
