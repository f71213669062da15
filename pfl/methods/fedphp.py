"""FedPHP: clients learn from the running average of their own past models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pfl.core.hyper import hyper
from pfl.core.lazy import torch
from pfl.core.rounding import whole_part
from pfl.engine.method import Method, Moment
from pfl.engine.mixing import Dispatch, Mixing, per_row
from pfl.engine.types import Batch, Client, Server, Tensor

TEMPERATURE = 4.0
"""Softmax temperature of the teacher, as in the authors' code."""


@dataclass(frozen=True)
class FedPHP(Method):
    """FedAvg whose clients learn from a historical personal model h_i, the average of their trained models.

    The local objective is ``(1 - lambda) loss + lambda H(softmax(h_i(x) / 4), softmax(theta(x)))``, with H
    the cross-entropy and h_i in evaluation mode. After a participant's s-th local training (s from 0),

        h_i <- mu h_i + (1 - mu) theta_i,    mu = min(0.9 s / S, 0.9),

    batch norm's statistics included, where S = max(1, floor(participation * rounds)).

    Source: Li et al., ECML PKDD 2021, https://doi.org/10.1007/978-3-030-86486-6_36, Algorithm 1. Code
        compared: the authors' ``lxcnju/FedRepo``, with lambda 0.1.
    State: ``server.client_state["history"][NAME]`` (n, *shape), h_i, initially the common initialisation;
        ``["trainings"]`` (n,), the number of each client's participations.
    Evaluated: h_i ("post_local", the headline); the global model ("post_aggregation").
    Differs from the authors: only their distillation (they also have the maximum mean discrepancy of the
        features), no clipping of gradients (theirs: to norm 100) and no minimum of five batches. PFLlib has a
        different method of this name: training starts from (1 - mu) w + mu theta_i, and the teacher is the
        received global model. There mu grows with the round and not with the client's participations, and
        the second term is a discrepancy with fixed kernels (since December 2024 at the latest).
    """

    family = "knowledge transfer"
    headline = "post_local"
    new_client = "The global model, also as h; after its local training, h is what it trained."

    lam: float = hyper(
        0.1, "lambda: weight of the historical model", low=0.0, high=1.0, search=(0.01, 0.5), log=True
    )
    mu: float = hyper(0.9, "largest weight of the past in h_i", low=0.0, high=1.0, search=(0.5, 0.99))

    def initialise(self, server: Server) -> None:
        server.client_state["history"] = {name: server.store[name].clone() for name in server.groups["all"]}
        server.client_state["trainings"] = torch.zeros(server.clients, dtype=torch.float64)

    def loss(self, client: Client, batch: Batch) -> Tensor:
        with client.other(client.state["history"]) as net:
            teacher = (net(batch.x) / TEMPERATURE).softmax(1)
        logits = client.net(batch.x)
        distilled = batch.mean(-(teacher * logits.log_softmax(1)).sum(1))
        return (1 - self.lam) * batch.cross_entropy(logits) + self.lam * distilled

    def aggregate(self, server: Server) -> Mixing:
        present = server.participants
        trainings = server.client_state["trainings"]
        expected = max(1, whole_part(server.config.participation, server.rounds))
        past = self.mu * (trainings[present] / expected).clamp(max=1)
        for name, history in server.client_state["history"].items():
            trained = server.trained[name]
            history[present] = torch.lerp(trained, history[present], per_row(past, trained))
        trainings[present] += 1
        return {"all": server.average()}

    def personal(self, server: Server, moment: Moment, clients: slice = slice(None)) -> Mapping[str, Tensor]:
        tensors = server.personal(moment, clients)
        if moment == "post_local":
            tensors |= {name: stack[clients] for name, stack in server.client_state["history"].items()}
        return tensors

    def admit(self, server: Server) -> Dispatch:
        self._begin(server, server.store.rows(server.participants))
        return {}

    def adapt(self, server: Server) -> None:
        super().adapt(server)
        self._begin(server, server.trained)

    def _begin(self, server: Server, models: Mapping[str, Tensor]) -> None:
        """Set the participants' h to ``models``, name to (K, *shape)."""
        for name, history in server.client_state["history"].items():
            history[server.participants] = models[name]
