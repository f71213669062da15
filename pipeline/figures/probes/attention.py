"""Class activation maps of the personalised model and the supervisor of FedSimSup."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pfl.analysis.activation import activation_maps, spread

if TYPE_CHECKING:
    from pfl.engine.server import Server
    from pfl.models._network import Network

CLASS = 3
"""Cats in CIFAR-10; the last class of a data set with fewer classes."""
IMAGES = 200
SHOWN = 4


def probe(server: Server, net: Network) -> dict[str, Any] | None:
    """After the last round, both networks' maps of test images of the class.

    The images are those of the clients that train on the class, in descending order of its samples.
    """
    import torch

    from pfl.engine.groups import bind

    if server.round < server.rounds:
        return None
    label = min(CLASS, server.federation.classes - 1)
    supervisor = net.get_submodule("supervisor.L")
    models = server.personal("post_aggregation")
    columns: dict[str, list[Any]] = {"image": [], "index": [], "model": [], "supervisor": []}
    owners = server.label_counts[:, label].argsort(descending=True).tolist()
    for client in owners:
        tests = server.federation.test[client]
        of_class = tests[server.federation.labels[tests].cpu().numpy() == label]
        chosen = torch.from_numpy(of_class[: IMAGES - len(columns["index"])])
        if not len(chosen):
            break
        bind(net, {name: stack[client] for name, stack in models.items()})
        images, labels = server.federation.batch(chosen.to(server.federation.device))
        columns["index"] += chosen.tolist()
        columns["image"] += server.federation.images[chosen].tolist()
        for name, network in (("model", net), ("supervisor", supervisor)):
            columns[name] += activation_maps(network, images, labels).tolist()  # type: ignore[arg-type]
    shown = slice(0, SHOWN)
    return {
        "shown": {name: values[shown] for name, values in columns.items()},
        "spread": {name: spread(torch.tensor(columns[name])).tolist() for name in ("model", "supervisor")},
    }
