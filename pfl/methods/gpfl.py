"""GPFL: features are conditioned on class embeddings, for all clients and for each client's classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pfl.engine.method import Method
from pfl.engine.mixing import Mixing, normalised
from pfl.hyper import hyper
from pfl.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from pfl.data.federation import Federation
    from pfl.engine.client import Batch, Client
    from pfl.engine.server import Server
    from pfl.models._network import Network

FLAT = 1e-12
"""Keeps the gradient of a norm defined where the norm is 0."""


@dataclass(frozen=True)
class GPFL(Method):
    """A personal head on features that a valve conditions on the client's classes.

    E (classes, d) are global class embeddings. The conditional valve maps a context c to a scale gamma(c) and
    a shift beta(c), each by linear, ReLU and layer norm, and features f to V(f, c) = relu(f (gamma(c) + 1) +
    beta(c)). With the contexts g, the mean of the received embeddings E', and p, their mean weighted by the
    client's class shares, a client minimises

        CE(head(V(f, p)), y) + CE(cos(V(f, g), E), y) + lambda ||V(f, g) - E'_y|| + mu/2 ||E, V||^2,

    with the norm over the whole batch. Everything but the head is averaged by size.

    Source: Zhang et al., ICCV 2023, https://arxiv.org/abs/2308.10279, Algorithm 1.
    State: ``server.client_state["shares"]`` (n, classes), the class shares of each client; personal heads.
    Evaluated: the personal head on the global extractor, with the context p.
    Differs from the authors: both contexts come from the received embeddings (their code: from those that the
        client had before). lambda and mu are tuned by the authors; the defaults are our choice.
    """

    family = "personal layers"

    lam: float = hyper(
        0.01, "lambda: weight of the distance to embeddings", low=0.0, search=(1e-4, 1.0), log=True
    )
    mu: float = hyper(0.01, "weight decay of embeddings and valve", low=0.0, search=(1e-4, 1e-1), log=True)

    def client_network(self, network: Network, federation: Federation) -> Network:
        classes, width = network.head.weight.shape
        network.add_module("embedding", torch.nn.Embedding(classes, width))
        branches = {name: _branch(width) for name in ("scale", "shift")}
        network.add_module("valve", torch.nn.ModuleDict(branches))
        return network

    def initialise(self, server: Server) -> None:
        shares = normalised(server.label_counts.clamp(min=FLAT))
        server.client_state["shares"] = shares.to(server.federation.dtype)

    def loss(self, client: Client, batch: Batch) -> Tensor:
        received = client.start["embedding.weight"]
        features = client.net.features(batch.x)
        own = client.net.head(_valve(client, features, client.state["shares"] @ received))
        common = _valve(client, features, received.mean(0))
        unit = torch.nn.functional.normalize
        cosines = unit(common, dim=1) @ unit(client.params["embedding.weight"], dim=1).T
        apart = (batch.sum((common - received[batch.y]).square().sum(1)) + FLAT).sqrt()
        conditioned = [w for n, w in client.weights.items() if n.startswith(("embedding.", "valve."))]
        decay = torch.stack([weight.square().sum() for weight in conditioned]).sum()
        entropies = batch.cross_entropy(own) + batch.cross_entropy(cosines)
        return entropies + self.lam * apart + self.mu / 2 * decay

    def logits(self, client: Client, x: Tensor) -> Tensor:
        context = client.state["shares"] @ client.start["embedding.weight"]
        logits: Tensor = client.net.head(_valve(client, client.net.features(x), context))
        return logits

    def aggregate(self, server: Server) -> Mixing:
        return dict.fromkeys(("extractor", "embedding", "valve"), server.average())


def _branch(width: int) -> torch.nn.Sequential:
    """Maps a context to a scale or a shift of features of this width."""
    return torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.LayerNorm(width))


def _valve(client: Client, features: Tensor, context: Tensor) -> Tensor:
    """Features (B, d), conditioned on a context (d,)."""
    scale, shift = (client.net.get_submodule(f"valve.{name}")(context) for name in ("scale", "shift"))
    conditioned: Tensor = (features * (scale + 1) + shift).relu()
    return conditioned
