"""FedRoD: a global model for balanced classes and a personal head for the client's own."""

from __future__ import annotations

import copy
from dataclasses import dataclass

from pfl.core.hyper import hyper
from pfl.engine.method import Method
from pfl.engine.mixing import Mixing
from pfl.engine.types import Batch, Client, Federation, Network, Server, Tensor

ABSENT = 1e-12
"""Replaces a class count of 0, so that its logarithm is finite."""


@dataclass(frozen=True)
class FedRoD(Method):
    """A generic head for balanced classes and a personal head for the client's own, on one extractor.

    The extractor f and the generic head g minimise the balanced softmax, that is cross-entropy on ``g(f(x)) +
    gamma log c`` with the client's class counts c. The personal head p, initially a copy of g, minimises
    cross-entropy on ``[g(f(x))] + p([f(x)])``, with no gradient through the brackets. Everything but the
    personal head is averaged by size.

    Source: Chen and Chao, ICLR 2022, https://arxiv.org/abs/2107.00778, Algorithm 1 with a linear personal
        head.
    State: ``server.client_state["prior"]`` (n, classes), gamma log c.
    Evaluated: the sum of both heads' logits, or the generic head's (``predicts``).
    Differs from the authors: one step on the sum of both losses (PFLlib: one step for each). The losses share
        no parameter, so the factor ``personal_lr`` on the second one scales the personal head's learning
        rate, except in its weight decay. No hypernetwork.
    """

    family = "personal layers"

    gamma: float = hyper(1.0, "exponent of the class counts", low=0.0, search=(0.0, 2.0))
    personal_lr: float = hyper(
        1.0,
        "the personal head's learning rate relative to the model's",
        low=0.0,
        search=(0.1, 10.0),
        log=True,
        when=("predicts", "personalised"),
    )
    predicts: str = hyper(
        "personalised",
        "evaluated: the sum of both heads, or the generic one",
        choices=("personalised", "generic"),
    )

    def client_network(self, network: Network, federation: Federation) -> Network:
        network.add_module("personal_head", copy.deepcopy(network.head))
        return network

    def initialise(self, server: Server) -> None:
        prior = self.gamma * server.label_counts.clamp(min=ABSENT).log()
        server.client_state["prior"] = prior.to(server.federation.dtype)

    def loss(self, client: Client, batch: Batch) -> Tensor:
        generic, residual = self._both(client, batch.x)
        balanced = batch.cross_entropy(generic + client.state["prior"])
        return balanced + self.personal_lr * batch.cross_entropy(generic.detach() + residual)

    def logits(self, client: Client, x: Tensor) -> Tensor:
        generic, residual = self._both(client, x)
        return generic + residual if self.predicts == "personalised" else generic

    def aggregate(self, server: Server) -> Mixing:
        return {"model": server.average()}

    def _both(self, client: Client, x: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the generic head and of the personal one (B, classes)."""
        features = client.net.features(x)
        return client.net.head(features), client.net.get_submodule("personal_head")(features.detach())
