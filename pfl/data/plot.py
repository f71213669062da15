"""Pictures of partitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pfl.data.partition import Partition

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_CLIENTS = 120
"""Of more clients, this many at even distances are drawn."""
_COLOURS = {"train": "#2f6690", "test": "#a9c9dd"}


def plot(
    partition: Partition, labels: np.ndarray, classes: Sequence[str], title: str | None = None
) -> Figure:
    """A partition as counts above (training and test samples of each client) and as bubbles below.

    A bubble's area is the number of samples, training and test together, of a class at a client.

    Args:
        labels: of all pooled images, (N,).
        classes: the classes' names.
        title: by default the partition's specification.
    """
    from matplotlib.figure import Figure

    drawn = np.unique(np.linspace(0, partition.clients - 1, _MOST_CLIENTS).round().astype(int))
    counts = {name: table[drawn] for name, table in partition.class_counts(labels, len(classes)).items()}
    width = np.clip(2.5 + 0.25 * len(drawn), 6, 13)
    height = np.clip(0.22 * len(classes), 2.2, 7)
    figure = Figure(figsize=(width, height + 1.8), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1, height))
    shown = "" if len(drawn) == partition.clients else f", {len(drawn)} of {partition.clients} clients"
    figure.suptitle((partition.spec if title is None else title) + shown, fontsize=10)
    _bars(above, {name: table.sum(1) for name, table in counts.items()})
    figure.draw_without_rendering()  # fixes the size of the axes, which that of the bubbles depends on
    _bubbles(below, counts["train"] + counts["test"], classes)
    below.set_xticks(*_ticks(drawn.tolist(), at_most=int(2.5 * width)))
    below.set_xlim(-0.7, len(drawn) - 0.3)
    below.set_xlabel("client")
    return figure


def _bars(axes: Axes, sizes: dict[str, np.ndarray]) -> None:
    bottom = np.zeros(len(sizes["train"]))
    for name, values in sizes.items():
        axes.bar(np.arange(len(values)), values, bottom=bottom, width=0.8, color=_COLOURS[name], label=name)
        bottom += values
    axes.set_ylabel("samples")
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1), borderaxespad=0.2)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(bottom=False)


def _bubbles(axes: Axes, counts: np.ndarray, classes: Sequence[str]) -> None:
    """Draw ``counts`` (clients, classes); the largest bubble just fills its cell."""
    client, label = np.nonzero(counts)
    values = counts[client, label]
    box = axes.get_window_extent()
    points = 72 / axes.figure.dpi
    diameter = 1.2 * points * min(box.width / counts.shape[0], box.height / counts.shape[1])
    area = np.clip(diameter, 4, 28) ** 2 / values.max()
    axes.scatter(client, label, s=area * values, color=_COLOURS["train"], alpha=0.8, linewidths=0)
    for value in _round_values(values.max()):
        axes.scatter(
            [], [], s=area * value, color=_COLOURS["train"], alpha=0.8, linewidths=0, label=f"{value:,}"
        )
    axes.legend(
        frameon=False,
        fontsize=8,
        loc="upper left",
        bbox_to_anchor=(1, 1),
        labelspacing=1.2,
        borderaxespad=0.2,
    )
    axes.set_yticks(*_ticks(list(classes), at_most=int(box.height * points / 9)))
    axes.set_ylim(len(classes) - 0.3, -0.7)
    axes.set_ylabel("class")
    axes.grid(linewidth=0.3, alpha=0.5)
    axes.set_axisbelow(True)


def _ticks(names: Sequence[object], at_most: int) -> tuple[np.ndarray, list[str]]:
    """Positions and names of ticks at even distances."""
    positions = np.arange(0, len(names), -(-len(names) // at_most))
    return positions, [str(names[position]) for position in positions]


def _round_values(largest: int) -> list[int]:
    """Up to three numbers for a legend, each 1, 2 or 5 times a power of ten."""
    steps = [factor * 10**power for power in range(12) for factor in (1, 2, 5)]
    fitting = [step for step in steps if step <= largest]
    return fitting[-1:-8:-3][::-1]
