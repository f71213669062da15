"""APFL: a personal model mixed with the global one, with an adaptive weight per client."""

from __future__ import annotations

from dataclasses import dataclass

from pfl.core.hyper import hyper
from pfl.core.lazy import torch
from pfl.engine.method import Method, Phase, Step
from pfl.engine.mixing import Dispatch, Mixing
from pfl.engine.types import Batch, Client, Federation, Network, Server, Tensor
from pfl.methods._personal_model import as_global, counterparts, personal_logits, with_personal_model

WEIGHT_DECAY = 0.02
"""Weight decay of alpha, as in the authors' code."""


@dataclass(frozen=True)
class APFL(Method):
    """FedAvg, plus a personal model v_i that is trained as a part of a mixture of both.

    A participant trains both on the same batches: the global model w on the loss of its own logits, and v_i
    on the loss f of the mixture's logits,

        alpha_i v_i(x) + (1 - alpha_i) [w(x)],

    with no gradient through the brackets. Before that, it updates alpha_i once per round:

        alpha_i <- clip(alpha_i - eta s, 0, 1),
        s = <v' - w', alpha_i df/dv + (1 - alpha_i) df/dw'> + 0.02 alpha_i,

    with the configuration's learning rate eta. Here w' and v' are the models after a step on the batch, w'
    first: the gradients are those of the mixture's loss with respect to the parameters, at v and w'.

    Source: Deng et al., 2020, https://arxiv.org/abs/2003.13461, Algorithm 1 and Eq. 12. Code compared:
        ``MLOPTPSU/FedTorch`` (``alpha_update``), by the authors.
    State: ``server.client_state["alpha"]`` (n,), alpha_i.
    Evaluated: the mixture with the global model as the client trained it ("post_local", the headline), or as
        aggregation left it ("post_aggregation").
    Differs from the authors: logits are mixed, as in their code (paper: the models' parameters; the two agree
        for linear models); s is that of their code (paper: <v - w, the gradient of the mixture of
        parameters>; on the digits, with two classes per client, it raises alpha to about 0.75, and that of
        their code leaves it near 0.5); alpha is updated before the round's training, on a separate batch
        (their code: in the first step); in training both models step from the same point, as in the paper
        (their code: v_i steps after w has stepped on the batch); models are averaged by training samples.
        FL-bench updates alpha on every batch of the first epoch; PFLlib trains v_i on its own loss and
        overwrites it with the mixture of the parameters after each round.
    """

    family = "personal model"
    headline = "post_local"
    new_client = "The global model, also as its personal model."

    alpha: float = hyper(
        0.5, "weight of the personal model at first", low=0.0, high=1.0, search=(0.1, 0.9), probe=0.4
    )

    def client_network(self, network: Network, federation: Federation) -> Network:
        return with_personal_model(network)

    def initialise(self, server: Server) -> None:
        server.client_state["alpha"] = torch.full(
            (server.clients,), self.alpha, dtype=server.federation.dtype
        )

    def phases(self, server: Server) -> tuple[Phase, ...]:
        return (Phase(steps=1, step=self._weigh), Phase())

    def loss(self, client: Client, batch: Batch) -> Tensor:
        # No parameter of one model is in the other's loss, so one step on the sum is a step of each.
        common = client.net(batch.x)
        return batch.cross_entropy(common) + batch.cross_entropy(_mixture(client, batch.x, common.detach()))

    def logits(self, client: Client, x: Tensor) -> Tensor:
        return _mixture(client, x, client.net(x))

    def aggregate(self, server: Server) -> Mixing:
        return {"model": server.average()}

    def admit(self, server: Server) -> Dispatch:
        return as_global(server)

    def _weigh(self, client: Client, batches: tuple[Batch, ...], lr: float | Tensor) -> Step:
        (batch,) = batches
        alpha, twins = client.state["alpha"], counterparts(client)
        with client.statistics_kept():
            own_step, _ = client.gradient(self.loss, batch)
            moved = {name: client.params[name] - lr * own_step[name] for name in twins}
            gradient, loss = client.gradient(_mixture_loss, batch, at={**client.weights, **moved})
        products = [
            (client.params[twin] - lr * gradient[twin] - moved[name])
            * (alpha * gradient[twin] + (1 - alpha) * gradient[name])
            for name, twin in twins.items()
        ]
        slope = torch.stack([product.sum() for product in products]).sum() + WEIGHT_DECAY * alpha
        return Step({}, loss, {"alpha": (alpha - lr * slope).clamp(0, 1)})


def _mixture_loss(client: Client, batch: Batch) -> Tensor:
    """The loss of the mixture, with gradients for both models."""
    return batch.cross_entropy(_mixture(client, batch.x, client.net(batch.x)))


def _mixture(client: Client, x: Tensor, common: Tensor) -> Tensor:
    """Logits (B, classes) of the mixture; ``common`` are the global model's."""
    alpha: Tensor = client.state["alpha"]
    return alpha * personal_logits(client, x) + (1 - alpha) * common
