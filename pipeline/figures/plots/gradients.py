"""Similarity of the clients' updates, layer by layer (SPFL, Figures 4 and 5)."""

from __future__ import annotations

import numpy as np

from pipeline.figures.drawing import grid, labels
from pipeline.figures.figure import Figure
from pipeline.figures.figure_runs import FigureRuns
from pipeline.figures.numbers import Numbers, Point
from pipeline.figures.probes.layer_cosines import probe
from pipeline.report.plots import COLOURS, place_legend
from pipeline.svg import Canvas


def measure(runs: FigureRuns) -> Numbers:
    """One panel per data set and one series per kind ("iid", "noniid"): the mean over rounds and clients by
    layer, from 1. Also one panel per setting, with one series per client."""
    means, clients = [], []
    for cell, per_seed in runs.measurements(probe):
        for number, layer in enumerate(per_seed[0][0], start=1):
            by_client = np.mean([[cosines[layer] for cosines in rounds] for rounds in per_seed], axis=(0, 1))
            means.append(Point(cell.dataset, _kind(cell.setting), number, float(by_client.mean())))
            clients += [
                Point(f"clients of {cell.setting}", f"client {client}", number, float(value))
                for client, value in enumerate(by_client, start=1)
            ]
    return Numbers(means + clients)


def draw(figure: Figure, numbers: Numbers) -> Canvas:
    """One dot per client and a bar for the mean; IID and non-IID side by side."""
    settings = {(dataset, _kind(name)): name for name, dataset in figure.datasets.items()}
    names = labels(figure)
    panels = [panel for panel in numbers.panels if not panel.startswith("clients of")]
    canvas, axes = grid(len(panels), across=2, sharey=True)
    handles = {}
    for panel, place in zip(panels, axes, strict=True):
        series = numbers.panels[panel]
        for number, (kind, points) in enumerate(series.items()):
            setting = settings[panel, kind]
            title, _, label = names[setting].rpartition(", ")
            place.set_title(title)
            colour, shift = COLOURS[number + 1], 0.38 * (number - (len(series) - 1) / 2)
            layer = np.array(list(points))
            means = [point.value for point in points.values()]
            handles[label] = place.bar(layer + shift, means, width=0.36, color=colour, alpha=0.45)
            for dots in numbers.panels[f"clients of {setting}"].values():
                values = [point.value for point in dots.values()]
                place.plot(layer + shift, values, "o", color=colour, markersize=2.5, alpha=0.8)
        place.set_xticks(layer, [f"layer {number:g}" for number in layer])
        place.set_ylabel("Mean cosine")
        place.grid(axis="x", visible=False)
    place_legend(canvas, handles)
    return canvas


def _kind(setting: str) -> str:
    return setting.rpartition("-")[2]
