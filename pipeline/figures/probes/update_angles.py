"""The angle between the clients' updates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pfl.analysis import similarity

if TYPE_CHECKING:
    from pfl.engine.server import Server
    from pfl.models._network import Network


def probe(server: Server, net: Network) -> dict[str, Any]:
    """The mean angle in degrees between the participants' updates of this round, over all parameters."""
    updates = {name: server.uploads[name] - server.received[name] for name in server.groups.trainable}
    angles = similarity.angles(updates).cpu()
    pairs = ~np.eye(len(angles), dtype=bool)
    return {"round": server.round, "angle": float(angles.numpy()[pairs].mean())}
