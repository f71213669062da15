"""Ditto: a personal model beside the global one, held near it by a proximal term."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pfl.engine.method import Method, Moment
from pfl.engine.mixing import Mixing
from pfl.hyper import hyper
from pfl.lazy import torch
from pfl.methods._personal_model import NAME, personal_logits, with_personal_model

if TYPE_CHECKING:
    from torch import Tensor

    from pfl.data.federation import Federation
    from pfl.engine.client import Batch, Client
    from pfl.engine.server import Server
    from pfl.models._network import Network


@dataclass(frozen=True)
class Ditto(Method):
    """FedAvg, and beside it a personal model v_i of each client that is never sent.

    A participant trains both on the same batches. The global model w minimises the loss, and v_i minimises

        loss(v) + lambda/2 ||v - w^t||^2,

    where w^t is the model that it received. The personal model has its own batch norm.

    Source: Li et al., ICML 2021, https://arxiv.org/abs/2012.04221, Algorithm 1.
    State: none but the personal models.
    Evaluated: the personal model ("post_local", the headline); the global model ("post_aggregation").
    Differs from the authors: participants are sampled uniformly and averaged by training samples, as in all
        methods here (theirs: sampled by size, averaged uniformly); lambda is the same for all clients (theirs
        can be chosen for each client on validation data).
    """

    family = "personal model"
    headline = "post_local"

    lam: float = hyper(1.0, "lambda: weight of the proximal term", low=0.0, search=(1e-2, 10.0), log=True)

    def client_network(self, network: Network, federation: Federation) -> Network:
        return with_personal_model(network)

    def loss(self, client: Client, batch: Batch) -> Tensor:
        # The two models share no parameter, so one step on the sum is a step of each.
        personal = batch.cross_entropy(personal_logits(client, batch.x))
        return super().loss(client, batch) + personal + self.lam / 2 * _distance_squared(client)

    def aggregate(self, server: Server) -> Mixing:
        return {"model": server.average()}

    def personal(self, server: Server, moment: Moment, clients: slice = slice(None)) -> Mapping[str, Tensor]:
        tensors = server.personal(moment, clients)
        if moment == "post_local":
            tensors.update({name: tensors[f"{NAME}.{name}"] for name in server.groups["model"]})
        return tensors


def _distance_squared(client: Client) -> Tensor:
    """||v - w^t||^2 over the parameters in training."""
    twins = {name: f"{NAME}.{name}" for name in client.trained if not name.startswith(f"{NAME}.")}
    moved = [(client.params[twin] - client.start[name]).square().sum() for name, twin in twins.items()]
    return torch.stack(moved).sum()
