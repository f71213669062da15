"""Cosine similarity of the clients' updates, layer by layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pfl.analysis.representations import layers
from pfl.analysis.similarity import cosines

if TYPE_CHECKING:
    from pfl.engine.server import Server
    from pfl.models._network import Network


def probe(server: Server, net: Network) -> dict[str, Any]:
    """For every layer, each participant's mean cosine with the updates of the others in this round."""
    means = {}
    for layer in layers(net):
        full = layer if layer == "head" else f"extractor.{layer}"
        names = [name for name in server.groups.trainable if name.rpartition(".")[0] == full]
        updates = {name: server.uploads[name] - server.received[name] for name in names}
        alike = cosines(updates, updates)
        others = len(alike) - 1
        means[layer] = ((alike.sum(1) - alike.diagonal()) / max(others, 1)).tolist()
    return means
