"""GPFL: features are conditioned on class embeddings, for all clients and for each client's classes."""

from __future__ import annotations

from dataclasses import dataclass

from pfl.core.hyper import hyper
from pfl.core.lazy import torch
from pfl.engine.method import Method, Phase
from pfl.engine.mixing import Dispatch, Mixing, normalised
from pfl.engine.types import Batch, Client, Config, Federation, Network, Server, Tensor

EPSILON = 1e-12
"""Keeps the gradient of a norm defined where the norm is 0."""


@dataclass(frozen=True)
class GPFL(Method):
    """A personal head on features that a valve conditions on the client's classes.

    E (classes, d) are global class embeddings. The conditional valve maps a context c to a scale gamma(c) and
    a shift beta(c), each by linear, ReLU and layer norm. Features f become V(f, c) = relu(f (gamma(c) + 1) +
    beta(c)). With the contexts g, the mean of the embeddings, and p, their mean weighted by the client's
    class shares, and with the received embeddings E', a client minimises

        CE(head(V(f, p)), y) + CE(cos(V(f, g), E), y) + lambda ||V(f, g) - E'_y|| + mu/2 ||E, V||^2,

    with the norm over the whole batch. Everything but the head is averaged by size. The contexts lag a round,
    as in the authors' code: in round t they come from the embeddings that the client had at the end of round
    t - 1, before it received new ones: its own trained ones if it took part. In round 1 they are 0.

    Source: Zhang et al., ICCV 2023, https://arxiv.org/abs/2308.10279, Algorithm 1. Code compared:
        ``TsingZ0/GPFL``, and ``TsingZ0/PFLlib`` by the same authors.
    State: ``server.client_state["shares"]`` (n, classes), the class shares of each client;
        ``context_all``, ``context_own`` (n, d), g and p; personal heads.
    Evaluated: the personal head on the global extractor, with the context p.
    Differs from the authors: nothing in the rule; the paper suggests that both contexts come from E'. The
        authors' script sets (lambda, mu) to (0.01, 0.1) for CNNs and MLPs, the defaults here, to (0.0001, 0)
        for ResNet-18 and fastText, and to (0.01, 1) for a CNN on sensor data.
    """

    family = "personal layers"
    new_client = "The global model and the mean of the heads, with contexts from the global embeddings."

    lam: float = hyper(
        0.01, "lambda: weight of the distance to embeddings", low=0.0, search=(1e-4, 1.0), log=True
    )
    mu: float = hyper(0.1, "weight decay of embeddings and valve", low=0.0, search=(1e-4, 1.0), log=True)

    def client_network(self, network: Network, federation: Federation) -> Network:
        classes, width = network.head.weight.shape
        network.add_module("embedding", torch.nn.Embedding(classes, width))
        branches = {name: _branch(width) for name in ("scale", "shift")}
        network.add_module("valve", torch.nn.ModuleDict(branches))
        return network

    def initialise(self, server: Server) -> None:
        shares = normalised(server.label_counts.clamp(min=EPSILON))
        server.client_state["shares"] = shares.to(server.federation.dtype)
        width = server.store.shape("embedding.weight")[1]
        for name in ("context_all", "context_own"):
            server.client_state[name] = torch.zeros(server.clients, width, dtype=server.federation.dtype)

    def phases(self, server: Server) -> tuple[Phase, ...]:
        return (Phase(gradient=self._decayed),)

    def loss(self, client: Client, batch: Batch) -> Tensor:
        """The local objective without the weight decay."""
        received = client.start["embedding.weight"]
        features = client.net.features(batch.x)
        own = client.net.head(_valve(client, features, client.state["context_own"]))
        common = _valve(client, features, client.state["context_all"])
        unit = torch.nn.functional.normalize
        cosines = unit(common, dim=1) @ unit(client.params["embedding.weight"], dim=1).T
        distance = (batch.sum((common - received[batch.y]).square().sum(1)) + EPSILON).sqrt()
        return batch.cross_entropy(own) + batch.cross_entropy(cosines) + self.lam * distance

    def logits(self, client: Client, x: Tensor) -> Tensor:
        features = client.net.features(x)
        logits: Tensor = client.net.head(_valve(client, features, client.state["context_own"]))
        return logits

    def aggregate(self, server: Server) -> Mixing:
        # Before the aggregation, participants hold trained embeddings and others the received ones.
        present, shares = server.participants, server.client_state["shares"]
        received, trained = server.store["embedding.weight"][0], server.trained["embedding.weight"]
        for name, weights in (
            ("context_all", torch.full_like(shares, 1 / shares.shape[1])),
            ("context_own", shares),
        ):
            contexts = weights @ received
            contexts[present] = (weights[present][:, None] @ trained).squeeze(1)
            server.client_state[name] = contexts
        return dict.fromkeys(("extractor", "embedding", "valve"), server.average())

    def admit(self, server: Server) -> Dispatch:
        present, state = server.participants, server.client_state
        embedding = server.store["embedding.weight"][0]
        state["context_all"][present] = embedding.mean(0)
        state["context_own"][present] = state["shares"][present] @ embedding
        return {}

    def _decayed(self, client: Client, batches: tuple[Batch, ...]) -> tuple[dict[str, Tensor], Tensor]:
        conditioned = [name for name in client.trained if name.startswith(("embedding.", "valve."))]
        gradient, value = client.gradient(self.loss, batches[0])
        return client.pulled(
            gradient, value, self.mu, {n: torch.zeros_like(gradient[n]) for n in conditioned}
        )

    def warnings(self, config: Config) -> tuple[str, ...]:
        if "resnet" in config.model and (self.lam, self.mu) == (GPFL.lam, GPFL.mu):
            return ("gpfl: lam and mu are those for a CNN; for ResNet-18 the authors have lam=0.0001, mu=0",)
        return ()


def _branch(width: int) -> torch.nn.Sequential:
    """Maps a context to a scale or a shift of features of this width."""
    return torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.LayerNorm(width))


def _valve(client: Client, features: Tensor, context: Tensor) -> Tensor:
    """Features (B, d), conditioned on a context (d,)."""
    scale, shift = (client.net.get_submodule(f"valve.{name}")(context) for name in ("scale", "shift"))
    conditioned: Tensor = (features * (scale + 1) + shift).relu()
    return conditioned
