"""Plots of partitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pfl.core.text import drawn_text
from pfl.data.partition import Partition

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_CLIENTS = 120
"""Maximum number of clients in a plot; if there are more, evenly spaced ones are drawn."""
_MOST_SHAPES = 2000
"""Above this number, bubbles are rasterised, so that a vector file stays small."""
_STEPS = [factor * 10**power for power in range(9) for factor in (1, 2, 5)]
_COLOURS = {"train": "#2f6690", "test": "#a9c9dd"}


def plot(
    partition: Partition, labels: np.ndarray, classes: Sequence[str], title: str | None = None
) -> Figure:
    """Plot a partition: bars for each client's training and test samples, and bubbles for its classes.

    The area of a bubble is proportional to a client's samples of a class, training and test together.

    Args:
        labels: labels of all pooled images, (N,).
        classes: the class names.
        title: by default the partition's specification.
    """
    from matplotlib.figure import Figure

    drawn = np.unique(np.linspace(0, partition.clients - 1, _MOST_CLIENTS).round().astype(int))
    counts = {name: table[drawn] for name, table in partition.class_counts(labels, len(classes)).items()}
    width = float(np.clip(2.5 + 0.25 * len(drawn), 6, 13))
    height = float(np.clip(0.22 * len(classes), 2.2, 7))
    figure = Figure(figsize=(width, height + 1.8), dpi=150, layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1, height))
    shown = "" if len(drawn) == partition.clients else f", {len(drawn)} of {partition.clients} clients"
    figure.suptitle(drawn_text((partition.spec if title is None else title) + shown), fontsize=10)
    _bars(above, {name: table.sum(1) for name, table in counts.items()})
    _bubbles(figure, below, counts["train"] + counts["test"], classes, drawn)
    return figure


def _bars(axes: Axes, sizes: dict[str, np.ndarray]) -> None:
    bottom = np.zeros(len(sizes["train"]))
    for name, values in sizes.items():
        axes.bar(np.arange(len(values)), values, bottom=bottom, width=0.8, color=_COLOURS[name], label=name)
        bottom += values
    axes.set_ylabel("samples")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(bottom=False)
    _legend(axes)


def _bubbles(
    figure: Figure, axes: Axes, counts: np.ndarray, classes: Sequence[str], clients: np.ndarray
) -> None:
    """Draw ``counts`` (clients, classes). Bubbles far above the median overlap neighbouring cells."""
    client, label = np.nonzero(counts)
    values = counts[client, label]
    axes.set_xlabel("client")
    axes.set_ylabel("class")
    figure.draw_without_rendering()  # computes the layout; the sizes below are in points
    box = axes.get_window_extent()
    width, height = 72 / figure.dpi * box.width, 72 / figure.dpi * box.height
    cell = min(width / len(clients), height / len(classes))
    diameter = cell * min(1.6, np.sqrt(values.max() / np.median(values)))
    area = np.clip(diameter, 10, 28) ** 2 / values.max()
    style: dict[str, Any] = {"color": _COLOURS["train"], "alpha": 0.75, "linewidths": 0, "clip_on": False}
    axes.scatter(client, label, s=area * values, rasterized=len(values) > _MOST_SHAPES, **style)
    for value in [step for step in _STEPS if step <= values.max()][-1:-8:-3][::-1]:
        axes.scatter([], [], s=area * value, label=f"{value:,}", **style)
    axes.set_xticks(*_ticks([str(c) for c in clients], at_most=int(width / (8 + 7 * len(str(clients[-1]))))))
    axes.set_yticks(*_ticks(classes, at_most=int(height / 9)))
    axes.set_xlim(-0.7, len(clients) - 0.3)
    axes.set_ylim(len(classes) - 0.3, -0.7)
    axes.grid(linewidth=0.3, alpha=0.5)
    axes.set_axisbelow(True)
    _legend(axes, labelspacing=1.2)


def _ticks(names: Sequence[str], at_most: int) -> tuple[np.ndarray, list[str]]:
    """Positions and names of ticks, at every name or every second, fifth, tenth, ... one."""
    step = next(step for step in _STEPS if len(names) <= step * at_most)
    positions = np.arange(0, len(names), step)
    return positions, [drawn_text(names[position]) for position in positions]


def _legend(axes: Axes, **options: Any) -> None:
    beside: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1, 1), "borderaxespad": 0.2}
    axes.legend(frameon=False, fontsize=8, **beside, **options)
