"""How alike the clients' updates are, layer by layer (SPFL, Figures 4 and 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pipeline.figures.config import Figure
from pipeline.figures.drawing import Drawing, grid, labels
from pipeline.figures.numbers import Numbers, Point
from pipeline.figures.observers.layer_cosines import look
from pipeline.figures.runs import Runs
from pipeline.plots import COLOURS, MARKERS

if TYPE_CHECKING:
    from matplotlib import figure as mpl


def measure(runs: Runs) -> Numbers:
    """A panel a data set, a series a setting: by layer, the mean over rounds and clients. For every setting a
    panel, with a series a client."""
    means, clients = [], []
    datasets = {cell.id: (cell.dataset, cell.setting) for cell in runs.cells}
    for cell, per_seed in runs.observations(look).items():
        dataset, setting = datasets[cell]
        for number, layer in enumerate(per_seed[0][0]):
            by_client = np.mean([[seen[layer] for seen in rounds] for rounds in per_seed], axis=(0, 1))
            kind = setting.rpartition("-")[2]
            means.append(Point(dataset, kind, number, float(by_client.mean())))
            clients += [
                Point(f"clients of {setting}", f"client {client + 1}", number, float(value))
                for client, value in enumerate(by_client)
            ]
    return Numbers(means + clients)


def draw(figure: Figure, numbers: Numbers) -> mpl.Figure:
    """A dot a client, a bar the mean; IID and non-IID side by side."""
    names = labels(figure)
    panels = {panel: series for panel, series in numbers.panels.items() if not panel.startswith("clients of")}
    canvas, axes = grid(len(panels), across=2, sharey=True)
    for (panel, series), place in zip(panels.items(), axes, strict=True):
        place.set_title(panel)
        for number, (kind, points) in enumerate(series.items()):
            shift = 0.38 * (number - (len(series) - 1) / 2)
            layers_ = np.array(list(points))
            means = [point.value for point in points.values()]
            setting = next(name for name in figure.settings if name.endswith(f"-{kind}"))
            label = names[setting].rpartition(", ")[2]
            place.bar(layers_ + shift, means, width=0.36, color=COLOURS[number + 1], alpha=0.45, label=label)
            of_clients = next(
                found
                for name, found in numbers.panels.items()
                if name.startswith("clients of") and _is_of(name, figure, panel, kind)
            )
            for dots in of_clients.values():
                place.plot(
                    np.array(list(dots)) + shift,
                    [point.value for point in dots.values()],
                    MARKERS[0],
                    color=COLOURS[number + 1],
                    markersize=2.5,
                    alpha=0.8,
                )
        place.set_xticks(layers_, [f"layer {number + 1:g}" for number in layers_])
        place.set_ylabel("Mean cosine")
        place.grid(axis="x", visible=False)
    axes[0].legend()
    return canvas


def _is_of(name: str, figure: Figure, dataset: str, kind: str) -> bool:
    setting = name.removeprefix("clients of ")
    found = figure.settings[setting].dataset or figure.dataset
    return found == dataset and setting.endswith(f"-{kind}")


gradients = Drawing(measure, draw)
