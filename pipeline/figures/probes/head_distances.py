"""Distances between the clients' heads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pfl.analysis.similarity import head_distances

if TYPE_CHECKING:
    from pfl.engine.server import Server
    from pfl.models._network import Network


def probe(server: Server, net: Network) -> dict[str, Any]:
    """D (n, n) of the heads after the round, and which clients have the same classes."""
    has = server.label_counts > 0
    same = (has[:, None] == has).all(2)
    return {
        "round": server.round,
        "distances": head_distances(server.store["head.weight"]).tolist(),
        "same": same.tolist(),
    }
