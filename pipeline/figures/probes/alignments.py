"""Similarity of the layers of the clients' models on the same images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pfl.analysis.representations import outputs
from pfl.analysis.similarity import pairwise_cka
from pfl.core.rng import generator

if TYPE_CHECKING:
    from pfl.engine.server import Server
    from pfl.models._network import Network

SAMPLES = 512


def probe(server: Server, net: Network) -> dict[str, Any] | None:
    """After the last round, the CKA (n, n) of every layer of the clients' models, on the same test images."""
    import torch

    from pfl.engine.groups import bind

    if server.round < server.rounds:
        return None
    tests = np.unique(np.concatenate(server.federation.test))
    drawn = generator(server.seed, "figure").choice(tests, min(SAMPLES, len(tests)), replace=False)
    images, _ = server.federation.batch(torch.from_numpy(np.sort(drawn)).to(server.federation.device))
    layers: dict[str, list[Any]] = {}
    models = server.personal("post_local")
    for client in range(server.clients):
        bind(net, {name: stack[client] for name, stack in models.items()})
        for name, output in outputs(net, images).items():
            layers.setdefault(name, []).append(output)
    return {name: pairwise_cka(of_clients).tolist() for name, of_clients in layers.items()}
