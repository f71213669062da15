"""The angle between two clients' updates, round after round (FedCAC, Figure 1a)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pfl.analysis import similarity
from pipeline.figures.config import Figure
from pipeline.figures.drawing import Drawing, averaged, grid, labels, lines
from pipeline.figures.numbers import Numbers
from pipeline.figures.runs import Runs

if TYPE_CHECKING:
    from matplotlib import figure as mpl

    from pfl.engine.server import Server
    from pfl.models._network import Network

PANEL = "angle"


def look(server: Server, net: Network) -> dict[str, Any]:
    """The mean angle in degrees between the participants' updates of this round, over all parameters."""
    updates = {name: server.uploads[name] - server.received[name] for name in server.groups.trainable}
    found = similarity.angles(updates).cpu()
    pairs = ~np.eye(len(found), dtype=bool)
    return {"round": server.round, "angle": float(found.numpy()[pairs].mean())}


def measure(runs: Runs) -> Numbers:
    """A series a setting, by round."""
    points = []
    for cell, per_seed in runs.observations(look).items():
        setting = cell.partition("/")[0]
        for together in zip(*per_seed, strict=True):
            angles = [seen["angle"] for seen in together]
            points.append(averaged(PANEL, setting, together[0]["round"], angles))
    return Numbers(points)


def draw(figure: Figure, numbers: Numbers) -> mpl.Figure:
    """Lines by round."""
    canvas, (axes,) = grid(1, height=3.2)
    lines(canvas, {PANEL: axes}, numbers, labels(figure) | {PANEL: ""})
    axes.set_xlabel("Round")
    axes.set_ylabel("Angle between the updates (degrees)")
    return canvas


angles = Drawing(measure, draw)
