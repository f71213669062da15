"""Sensitivity of the weights of the last layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pfl.analysis.sensitivity import sensitivity

if TYPE_CHECKING:
    from pfl.engine.server import Server
    from pfl.models._network import Network


def probe(server: Server, net: Network) -> dict[str, Any] | None:
    """In the last round, the sensitivity (classes, d) of the first client's head, and samples by class."""
    if server.round < server.rounds:
        return None
    sensitivities = sensitivity(server.received["head.weight"], server.uploads["head.weight"])[0]
    return {"sensitivity": sensitivities.tolist(), "samples": server.label_counts[0].tolist()}
