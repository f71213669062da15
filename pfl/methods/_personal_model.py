"""A personal model in addition to the global one: a second network per client, which is never sent."""

from __future__ import annotations

import copy

from pfl.engine.types import Client, Network, Server, Tensor

NAME = "personal"
"""The submodule of the client's network that is the personal model; the tensor ``personal.X`` is the personal
counterpart of ``X``."""


def with_personal_model(network: Network) -> Network:
    """``network`` with a copy of itself as its personal model."""
    network.add_module(NAME, copy.deepcopy(network))
    return network


def as_global(server: Server) -> dict[str, Tensor]:
    """A dispatch that sets the participants' personal model to the global one."""
    model = server.store.rows(server.participants)
    return {f"{NAME}.{name}": model[name] for name in server.groups["model"]}


def counterparts(client: Client) -> dict[str, str]:
    """Name of each of the global model's parameters in training to that of its personal counterpart."""
    return {name: f"{NAME}.{name}" for name in client.trained if not name.startswith(f"{NAME}.")}


def personal_logits(client: Client, x: Tensor) -> Tensor:
    """Logits (B, classes) of the personal model."""
    logits: Tensor = client.net.get_submodule(NAME)(x)
    return logits
