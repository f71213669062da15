"""Client similarities that methods use, compared with the similarity of the data (pFedSim, Table 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np

from pfl.analysis.measures import similarities
from pipeline.figures.drawing import grid
from pipeline.figures.figure import Figure
from pipeline.figures.figure_runs import FigureRuns
from pipeline.figures.numbers import Numbers, Point
from pipeline.report.plots import COLOURS
from pipeline.spec.published import published_cells
from pipeline.svg import Canvas

NAMES = ("i", "i'", "j", "k")
METRICS = {
    "data": "Data similarity (Eq. 1)",
    "wdb": "WDB: 1 / Wasserstein distance of batch norm's statistics",
    "mdb": "MDB: cosine of the updates",
    "ldb": "LDB: difference of losses over distance of models",
    "cs": "CS: mean cosine of the heads (pFedSim)",
}
CORRELATION = "correlation with data similarity"
PRINTED = "correlation of the printed values"


def measure(runs: FigureRuns) -> Numbers:
    """One panel per metric and one series per pair of clients, ours and as printed. Also each metric's
    correlation with data similarity, over our pairs and over the printed ones."""
    ((_, per_seed),) = runs.measurements(similarities)
    clients = min(len(NAMES), len(per_seed[0][-1]["cs"]))
    pairs = list(combinations(range(clients), 2))
    values = {
        metric: [
            float(np.mean([measurements[-1][metric][a][b] for measurements in per_seed])) for a, b in pairs
        ]
        for metric in METRICS
        if metric in per_seed[0][-1]
    }
    points = [
        Point(metric, f"{NAMES[a]}, {NAMES[b]}", 0, value)
        for metric, of_pairs in values.items()
        for (a, b), value in zip(pairs, of_pairs, strict=True)
    ]
    printed: dict[str, dict[str, float]] = {}
    source = runs.figure.published
    assert source  # the figure declares it
    for cell in published_cells(source.paper, source.file):
        if cell.table == source.table:
            pair = cell.variant.removeprefix("pair=").replace(",", ", ")
            printed.setdefault(cell.method.removesuffix("_similarity"), {})[pair] = cell.mean
    points += [
        Point(f"{metric}, printed", pair, 0, value)
        for metric, by_pair in printed.items()
        for pair, value in by_pair.items()
    ]
    whole = {metric: [*by_pair.values()] for metric, by_pair in printed.items()}
    return Numbers(points + _correlations(CORRELATION, values) + _correlations(PRINTED, whole))


def _correlations(panel: str, values: Mapping[str, Sequence[float]]) -> list[Point]:
    return [
        Point(panel, metric, 0, float(np.corrcoef(values["data"], of_metric)[0, 1]))
        for metric, of_metric in values.items()
        if metric != "data"
    ]


def draw(figure: Figure, numbers: Numbers) -> Canvas:
    """Bars by pair, a panel per metric."""
    panels = [panel for panel in numbers.panels if panel in METRICS]
    canvas, axes = grid(len(panels), height=2.3, across=3)
    for panel, place in zip(panels, axes, strict=True):
        pairs = numbers.panels[panel]
        place.bar(list(pairs), [points[0].value for points in pairs.values()], color=COLOURS[1], width=0.6)
        name, _, what = METRICS[panel].partition(": ")
        if panel != "data":
            ours, theirs = (numbers.panels[series][panel][0].value for series in (CORRELATION, PRINTED))
            name += f", correlation {ours:.2f} (printed: {theirs:.2f})"
        place.set_title(name)
        place.set_xlabel(what)
        place.grid(axis="x", visible=False)
    return canvas
