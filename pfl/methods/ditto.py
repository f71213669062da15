"""Ditto: a personal model in addition to the global one, kept close to it by a proximal term."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pfl.core.hyper import hyper
from pfl.engine.method import Method, Moment, Phase
from pfl.engine.mixing import Dispatch, Mixing
from pfl.engine.types import Batch, Client, Federation, Network, Server, Tensor
from pfl.methods._personal_model import NAME, as_global, personal_logits, with_personal_model


@dataclass(frozen=True)
class Ditto(Method):
    """FedAvg, plus a personal model v_i of each client that is never sent.

    A participant trains both on the same batches. The global model w minimises the loss, and v_i minimises

        loss(v) + lambda/2 ||v - w^t||^2,

    where w^t is the model that it received. The personal model has its own batch norm. With
    ``personal_epochs``, the personal model trains for that many separate epochs, after the global one.

    Source: Li et al., ICML 2021, https://arxiv.org/abs/2012.04221, Algorithm 1. Code compared:
        ``litian96/ditto``, with the same batches for both models.
    State: only the personal models.
    Evaluated: the personal model ("post_local", the headline); the global model, which is FedAvg's for every
        lambda ("post_aggregation").
    Differs from the authors: participants are sampled uniformly and averaged by training samples, as in all
        methods here (theirs: sampled by size, averaged uniformly); lambda is the same for all clients
        (theirs, from 0.1, 1 and 2, can be chosen for each client on validation data). FL-bench and PFLlib
        train the personal model in a separate pass, as with ``personal_epochs``.
    """

    family = "personal model"
    headline = "post_local"
    new_client = "The global model, also as its personal model."

    lam: float = hyper(1.0, "lambda: weight of the proximal term", low=0.0, search=(1e-2, 10.0), log=True)
    personal_epochs: int = hyper(
        0,
        "epochs of the personal model, on separate batches; 0 means those of the global model, on the same "
        "batches",
        low=0,
    )

    def client_network(self, network: Network, federation: Federation) -> Network:
        return with_personal_model(network)

    def phases(self, server: Server) -> tuple[Phase, ...]:
        if not self.personal_epochs:
            return (Phase(gradient=self._both),)
        personal = Phase(self.personal_epochs, trains=(NAME,), gradient=self._personal)
        return (Phase(trains=("model",)), personal)

    def aggregate(self, server: Server) -> Mixing:
        return {"model": server.average()}

    def personal(self, server: Server, moment: Moment, clients: slice = slice(None)) -> Mapping[str, Tensor]:
        tensors = server.personal(moment, clients)
        if moment == "post_local":
            tensors.update({name: tensors[f"{NAME}.{name}"] for name in server.groups["model"]})
        return tensors

    def admit(self, server: Server) -> Dispatch:
        return as_global(server)

    def _both(self, client: Client, batches: tuple[Batch, ...]) -> tuple[dict[str, Tensor], Tensor]:
        """Sum of the losses of both models; they share no parameter, so one step on the sum is a step of
        each.
        """
        return self._held(client, *client.gradient(_both_losses, batches[0]))

    def _personal(self, client: Client, batches: tuple[Batch, ...]) -> tuple[dict[str, Tensor], Tensor]:
        return self._held(client, *client.gradient(_personal_loss, batches[0]))

    def _held(
        self, client: Client, gradient: Mapping[str, Tensor], value: Tensor
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Add the proximal term of the personal model."""
        own = {name: name.removeprefix(f"{NAME}.") for name in client.trained if name.startswith(f"{NAME}.")}
        received = {twin: client.start[name] for twin, name in own.items()}
        return client.pulled(gradient, value, self.lam, received)


def _personal_loss(client: Client, batch: Batch) -> Tensor:
    return batch.cross_entropy(personal_logits(client, batch.x))


def _both_losses(client: Client, batch: Batch) -> Tensor:
    return batch.cross_entropy(client.net(batch.x)) + _personal_loss(client, batch)
