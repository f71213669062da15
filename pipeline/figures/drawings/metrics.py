"""Similarities of clients that methods go by, beside what their data have in common (pFedSim, Table 2)."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from pfl.analysis.similarity import (
    class_cosines,
    data_similarity,
    statistics_distances,
    update_cosines,
)
from pipeline.figures.config import Figure
from pipeline.figures.drawing import Drawing, grid
from pipeline.figures.numbers import Numbers, Point
from pipeline.figures.runs import Runs
from pipeline.plots import COLOURS

if TYPE_CHECKING:
    from matplotlib import figure as mpl
    from torch import Tensor

    from pfl.engine.client import Batch, Client
    from pfl.engine.server import Server
    from pfl.models._network import Network

NAMES = ("i", "i'", "j", "k")
METRICS = {
    "data": "Data similarity (Eq. 1)",
    "wdb": "WDB: 1 / Wasserstein distance of batch norm's statistics",
    "mdb": "MDB: cosine of the updates",
    "ldb": "LDB: difference of losses over distance of models",
    "cs": "CS: mean cosine of the heads (pFedSim)",
}
CORRELATION = "correlation with data similarity"


def look(server: Server, net: Network) -> dict[str, Any] | None:
    """After the last round, every metric's matrix (n, n); updates are those of the round, and distances of
    statistics need batch norm."""
    import torch

    if server.round < server.rounds:
        return None
    bank = server.bank
    changes = {name: server.uploads[name] - server.received[name] for name in server.groups.trainable}
    norms = [name.removesuffix(".running_mean") for name in bank.tensors if name.endswith("running_mean")]
    models = torch.cat([bank[name].flatten(1).double() for name in server.groups.trainable], 1)
    distances = torch.cdist(models, models)
    losses = _losses(server)
    gains = (losses.diagonal()[:, None] - losses) / torch.where(distances > 0, distances, 1.0)
    found = {
        "data": data_similarity(server.label_counts),
        "mdb": update_cosines(changes),
        "ldb": (gains + gains.T) / 2,
        "cs": class_cosines(bank["head.weight"]).mean(0),
    }
    if norms:
        means, variances = (
            [bank[f"{name}.{kind}"] for name in norms] for kind in ("running_mean", "running_var")
        )
        apart = statistics_distances(means, variances)
        found["wdb"] = torch.where(apart > 0, 1 / apart, 0.0)
    return {name: matrix.tolist() for name, matrix in found.items()}


def _losses(server: Server) -> Tensor:
    """(n, n) mean cross-entropy on the row's client's training data of the column's model."""
    import torch
    import torch.nn.functional as F

    def statistic(client: Client, batch: Batch) -> dict[str, Tensor]:
        return {"loss": batch.sum(F.cross_entropy(client.net(batch.x), batch.y, reduction="none"))}

    columns = []
    for other in range(server.clients):
        everybody = torch.arange(server.clients)
        model = {name: server.bank[name][[other] * server.clients] for name in server.bank.tensors}
        columns.append(server.collect(statistic, everybody, model)["loss"] / server.sizes)
    return torch.stack(columns, 1)


def measure(runs: Runs) -> Numbers:
    """A panel a metric, a series a pair of clients; and each metric's correlation with data similarity."""
    (per_seed,) = runs.observations(look).values()
    clients = min(len(NAMES), len(per_seed[0][-1]["cs"]))
    pairs = list(combinations(range(clients), 2))
    values = {
        metric: [float(np.mean([seen[-1][metric][a][b] for seen in per_seed])) for a, b in pairs]
        for metric in METRICS
        if metric in per_seed[0][-1]
    }
    points = [
        Point(metric, f"{NAMES[a]}, {NAMES[b]}", 0, value)
        for metric, found in values.items()
        for (a, b), value in zip(pairs, found, strict=True)
    ]
    correlations = [
        Point(CORRELATION, metric, 0, float(np.corrcoef(values["data"], values[metric])[0, 1]))
        for metric in values
        if metric != "data"
    ]
    return Numbers(points + correlations)


def draw(figure: Figure, numbers: Numbers) -> mpl.Figure:
    """Bars by pair, a panel a metric."""
    panels = [panel for panel in numbers.panels if panel != CORRELATION]
    canvas, axes = grid(len(panels), height=2.3, across=3)
    for panel, place in zip(panels, axes, strict=True):
        pairs = numbers.panels[panel]
        place.bar(list(pairs), [points[0].value for points in pairs.values()], color=COLOURS[1], width=0.6)
        name, _, what = METRICS[panel].partition(": ")
        found = numbers.panels[CORRELATION].get(panel)
        place.set_title(f"{name}{f', correlation {found[0].value:.2f}' if found else ''}")
        place.set_xlabel(what)
        place.grid(axis="x", visible=False)
    return canvas


metrics = Drawing(measure, draw)
