"""The type of a plot, and shared drawing functions: panels, lines, heat maps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.figures.figure import Figure
from pipeline.figures.figure_runs import FigureRuns
from pipeline.figures.numbers import Numbers, Point
from pipeline.report.plots import INK, WIDTH, look_at, place_legend
from pipeline.svg import Axes, Canvas

if TYPE_CHECKING:
    from matplotlib.image import AxesImage


@dataclass(frozen=True)
class Plot:
    """Definition of a family of figures.

    Attributes:
        measure: computes the numbers from the runs.
        draw: draws the picture from the numbers.
        simulates: whether simulations are needed; False means that the partitions are enough.
    """

    measure: Callable[[FigureRuns], Numbers]
    draw: Callable[[Figure, Numbers], Canvas]
    simulates: bool = True


def labels(figure: Figure) -> dict[str, str]:
    """The labels of settings and rows, by name."""
    return figure.row_labels | figure.column_labels


def grid(count: int, height: float = 2.6, across: int = 3, **options: Any) -> tuple[Canvas, list[Axes]]:
    """A figure with ``count`` panels, up to ``across`` in a row; a single panel is narrower."""
    from matplotlib import figure as mpl

    across = min(across, count)
    down = -(-count // across)
    width = WIDTH if across > 1 else 0.65 * WIDTH
    canvas = mpl.Figure(figsize=(width, height * down + 0.5), layout="constrained")
    places = list(canvas.subplots(down, across, squeeze=False, **options).flat)
    for place in places:
        place.set_axisbelow(True)
    for place in places[count:]:
        place.remove()
    return canvas, places[:count]


def line_plot(
    figure: Figure,
    numbers: Numbers,
    x_label: str,
    y_label: str = "Accuracy (%)",
    *,
    height: float = 2.6,
    across: int = 3,
    marker: str = "",
    names: Mapping[str, str] = {},
) -> Canvas:
    """One line per series of a panel, a band of one standard deviation around it, and one legend for all.

    Args:
        height, across: as in `grid`.
        names: labels that replace those of the figure.
    """
    panels, names = numbers.panels, {**labels(figure), **names}
    canvas, axes = grid(len(panels), height, across)
    shown = dict.fromkeys(name for series in panels.values() for name in series)
    looks = {series: look_at(place) for place, series in enumerate(shown, start=1)}
    handles = {}
    for place, (panel, lines) in zip(axes, panels.items(), strict=True):
        place.set(title=names.get(panel, panel), xlabel=x_label, ylabel=y_label)
        for series, points in lines.items():
            look = looks[series]
            rows = sorted((p.x, p.value, np.nan if p.std is None else p.std) for p in points.values())
            x, mean, std = np.array(rows).T
            (handles[series],) = place.plot(
                x, mean, marker=marker, markersize=4, color=look.colour, ls=look.dash
            )
            if np.isfinite(std).all():
                place.fill_between(x, mean - std, mean + std, color=look.colour, alpha=0.15, linewidth=0)
    if len(handles) > 1:
        place_legend(canvas, {names.get(series, series): handle for series, handle in handles.items()})
    return canvas


def heat(axes: Axes, matrix: np.ndarray, low: float = 0.0, high: float = 1.0) -> AxesImage:
    """Draw a matrix as colours, with its values as text if there are few."""
    from matplotlib.ticker import MaxNLocator

    axes.grid(visible=False)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    image = axes.imshow(matrix, cmap="Blues", vmin=low, vmax=high, aspect="auto")
    if matrix.size <= 40:
        for row, column in np.ndindex(*matrix.shape):
            dark = (matrix[row, column] - low) / (high - low) > 0.6
            text = f"{matrix[row, column]:.2f}"
            axes.text(column, row, text, ha="center", va="center", fontsize=8, color="white" if dark else INK)
    return image


def averaged(panel: str, series: str, x: float, values: Sequence[float]) -> Point:
    """One point from the values of several seeds: their mean and standard deviation."""
    std = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Point(panel, series, x, float(np.mean(values)), std)
