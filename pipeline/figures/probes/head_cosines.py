"""Cosine similarity of the clients' heads, class by class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pfl.analysis.similarity import class_cosines, data_similarity

if TYPE_CHECKING:
    from pfl.engine.server import Server
    from pfl.models._network import Network


def probe(server: Server, net: Network) -> dict[str, Any] | None:
    """After the last round, the heads' cosines by class, the data's similarity, and the clients' classes."""
    if server.round < server.rounds:
        return None
    return {
        "cosines": class_cosines(server.store["head.weight"]).tolist(),
        "data": data_similarity(server.label_counts).tolist(),
        "owns": (server.label_counts > 0).tolist(),
    }
