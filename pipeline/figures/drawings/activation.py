"""Where the personalised model and the supervisor look (FedSimSup, Figure 4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pfl.analysis.activation import activation_maps, spread
from pipeline.figures.config import Figure
from pipeline.figures.drawing import Drawing, grid
from pipeline.figures.numbers import Numbers, Point
from pipeline.figures.runs import Runs

if TYPE_CHECKING:
    from matplotlib import figure as mpl

    from pfl.engine.server import Server
    from pfl.models._network import Network

CLASS = 3
"""Cats, in the order of CIFAR-10; of a data set with fewer classes, the last."""
IMAGES = 200
SHOWN = 4
SPREAD = "share of the image above half of the map's largest value"


def look(server: Server, net: Network) -> dict[str, Any] | None:
    """After the last round, maps of test images of the class, of clients that train on it, the one that has
    most of it first; both networks on each image."""
    import torch

    from pfl.engine.groups import bind

    if server.round < server.rounds:
        return None
    label = min(CLASS, server.federation.classes - 1)
    supervisor = net.get_submodule("supervisor.L")
    models = server.personal("post_aggregation")
    found: dict[str, list[Any]] = {"image": [], "index": [], "model": [], "supervisor": []}
    owners = server.label_counts[:, label].argsort(descending=True).tolist()
    for client in owners:
        tests = server.federation.test[client]
        of_class = tests[server.federation.labels[tests].cpu().numpy() == label]
        chosen = torch.from_numpy(of_class[: IMAGES - len(found["index"])])
        if not len(chosen):
            break
        bind(net, {name: stack[client] for name, stack in models.items()})
        images, labels = server.federation.batch(chosen.to(server.federation.device))
        found["index"] += chosen.tolist()
        found["image"] += server.federation.images[chosen].tolist()
        for name, network in (("model", net), ("supervisor", supervisor)):
            found[name] += activation_maps(network, images, labels).tolist()  # type: ignore[arg-type]
    shown = slice(0, SHOWN)
    return {
        "shown": {name: values[shown] for name, values in found.items()},
        "spread": {name: spread(torch.tensor(found[name])).tolist() for name in ("model", "supervisor")},
    }


def measure(runs: Runs) -> Numbers:
    """How far each network's maps spread, by image; the maps themselves are images."""
    (per_seed,) = runs.observations(look).values()
    seen = per_seed[0][-1]
    points = [
        Point(SPREAD, name, image, value)
        for name, values in seen["spread"].items()
        for image, value in enumerate(values)
    ]
    return Numbers(points, {name: np.array(values) for name, values in seen["shown"].items()})


def draw(figure: Figure, numbers: Numbers) -> mpl.Figure:
    """A column an image: itself, the map of the personalised model, that of the supervisor."""
    images = numbers.images["image"]
    canvas, axes = grid(3 * len(images), height=1.9, across=len(images))
    titles = {"image": "Image", "model": "Personalised model", "supervisor": "Supervisor"}
    for number, place in enumerate(axes):
        row, column = divmod(number, len(images))
        name = [*titles][row]
        picture = images[column].astype(np.uint8).transpose(1, 2, 0)
        place.imshow(picture.squeeze(), cmap="gray")
        if name != "image":
            place.imshow(numbers.images[name][column], cmap="jet", alpha=0.5, vmin=0, vmax=1)
        place.set_xticks([])
        place.set_yticks([])
        if column == 0:
            place.set_ylabel(titles[name])
    canvas.set_figwidth(1.9 * len(images) + 0.6)
    return canvas


activation = Drawing(measure, draw)
