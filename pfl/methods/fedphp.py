"""FedPHP: clients learn from the running average of their own past models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pfl.engine.method import Method, Moment
from pfl.engine.mixing import Mixing, per_row
from pfl.hyper import hyper
from pfl.lazy import torch
from pfl.rounding import whole_part

if TYPE_CHECKING:
    from torch import Tensor

    from pfl.engine.client import Batch, Client
    from pfl.engine.server import Server

TEMPERATURE = 4.0
"""Softmax temperature of the teacher, as in the authors' code."""


@dataclass(frozen=True)
class FedPHP(Method):
    """FedAvg whose clients distil from a historical personal model h_i, the average of their trained models.

    The local objective is

        (1 - lambda) loss + lambda H(softmax(h_i(x) / 4), softmax(theta(x)))

    with H the cross-entropy and h_i in evaluation mode. After a participant's s-th local training (s from 0),

        h_i <- mu h_i + (1 - mu) theta_i,    mu = min(0.9 s / S, 0.9),

    batch norm's statistics included, where S = max(1, floor(participation * rounds)).

    Source: Li et al., ECML PKDD 2021, https://doi.org/10.1007/978-3-030-86486-6_36, Algorithm 1.
    State: ``server.client_state["history.NAME"]`` (n, *shape), h_i, at first the common initialisation;
        ``trainings`` (n,), how often each client took part.
    Evaluated: h_i ("post_local", the headline); the global model ("post_aggregation").
    Differs from the authors: transfer is by distillation alone (theirs: that, or the MMD of the features); no
        clipping of gradients and no minimum of five batches.
    """

    family = "knowledge transfer"
    headline = "post_local"

    lam: float = hyper(
        0.1, "lambda: weight of the historical model", low=0.0, high=1.0, search=(0.01, 0.5), log=True
    )
    mu: float = hyper(0.9, "largest weight of the past in h_i", low=0.0, high=1.0, search=(0.5, 0.99))

    def initialise(self, server: Server) -> None:
        for name in server.groups["all"]:
            server.client_state[f"history.{name}"] = server.bank[name].clone()
        server.client_state["trainings"] = torch.zeros(server.clients, dtype=torch.float64)

    def loss(self, client: Client, batch: Batch) -> Tensor:
        with client.other(client.stored("history")) as net:
            teacher = (net(batch.x) / TEMPERATURE).softmax(1)
        logits = client.net(batch.x)
        distilled = batch.mean(-(teacher * logits.log_softmax(1)).sum(1))
        return (1 - self.lam) * batch.cross_entropy(logits) + self.lam * distilled

    def aggregate(self, server: Server) -> Mixing:
        present = server.participants
        trainings = server.client_state["trainings"]
        expected = max(1, whole_part(server.config.participation, server.rounds))
        past = self.mu * (trainings[present] / expected).clamp(max=1)
        for name in server.groups["all"]:
            history, trained = server.client_state[f"history.{name}"], server.trained[name]
            history[present] = torch.lerp(trained, history[present], per_row(past, trained))
        trainings[present] += 1
        return {"all": server.average()}

    def personal(self, server: Server, moment: Moment, clients: slice = slice(None)) -> Mapping[str, Tensor]:
        tensors = server.personal(moment, clients)
        if moment == "post_local":
            tensors.update({n: server.client_state[f"history.{n}"][clients] for n in server.groups["all"]})
        return tensors
