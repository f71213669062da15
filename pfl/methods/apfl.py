"""APFL: a personal model mixed with the global one, with an adaptive weight for each client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pfl.engine.method import Method, Phase
from pfl.engine.mixing import Mixing
from pfl.hyper import hyper
from pfl.lazy import torch
from pfl.methods._personal_model import personal_logits, with_personal_model

if TYPE_CHECKING:
    from torch import Tensor

    from pfl.data.federation import Federation
    from pfl.engine.client import Batch, Client, Step
    from pfl.engine.server import Server
    from pfl.models._network import Network

WEIGHT_DECAY = 0.02
"""Weight decay of alpha, as in the authors' code."""


@dataclass(frozen=True)
class APFL(Method):
    """FedAvg, and beside it a personal model v_i that is trained as a part of a mixture of both.

    A participant trains both on the same batches: the global model w on the loss of its own logits, and v_i
    on the loss of the mixture's logits,

        alpha_i v_i(x) + (1 - alpha_i) [w(x)],

    with no gradient through the brackets. Before that, with ``adaptive``, it moves alpha_i by one step of
    gradient descent on the mixture's loss + 0.01 alpha^2, at the configuration's learning rate, and clips it
    to [0, 1].

    Source: Deng et al., 2020, https://arxiv.org/abs/2003.13461, Algorithm 1 and Eq. 12.
    State: ``server.client_state["alpha"]`` (n,), alpha_i.
    Evaluated: the mixture with the global model as the client trained it ("post_local", the headline), or as
        aggregation left it ("post_aggregation").
    Differs from the authors: logits are mixed, as in their code (paper: the models' parameters); alpha is
        updated before the round's training, on a separate batch (their code: in the first step, by a gradient
        of the parameters); both models step from the same point, as in the paper (their code: v_i steps after
        w has stepped on the batch); models are averaged by training samples.
    """

    family = "personal model"
    headline = "post_local"

    alpha: float = hyper(
        0.5, "weight of the personal model at first", low=0.0, high=1.0, search=(0.1, 0.9), probe=0.4
    )
    adaptive: bool = hyper(True, "each client moves its weight once per round")

    def client_network(self, network: Network, federation: Federation) -> Network:
        return with_personal_model(network)

    def initialise(self, server: Server) -> None:
        server.client_state["alpha"] = torch.full(
            (server.clients,), self.alpha, dtype=server.federation.dtype
        )

    def phases(self, server: Server) -> tuple[Phase, ...]:
        return (Phase(steps=1, step=self._weigh), Phase()) if self.adaptive else (Phase(),)

    def loss(self, client: Client, batch: Batch) -> Tensor:
        # No parameter of one model is in the other's loss, so one step on the sum is a step of each.
        common = client.net(batch.x)
        return batch.cross_entropy(common) + batch.cross_entropy(_mixture(client, batch.x, common.detach()))

    def logits(self, client: Client, x: Tensor) -> Tensor:
        return _mixture(client, x, client.net(x))

    def aggregate(self, server: Server) -> Mixing:
        return {"model": server.average()}

    def _weigh(self, client: Client, batches: tuple[Batch, ...], lr: float | Tensor) -> Step:
        from pfl.engine.client import Step

        (batch,) = batches
        alpha = client.state["alpha"]
        client.attach(batch)
        with client.statistics_kept():
            own, common = personal_logits(client, batch.x), client.net(batch.x)
        mixture = alpha * own + (1 - alpha) * common
        target = torch.nn.functional.one_hot(batch.y, mixture.shape[1])
        slope = batch.mean(((mixture.softmax(1) - target) * (own - common)).sum(1)) + WEIGHT_DECAY * alpha
        return Step({}, batch.cross_entropy(mixture), {"alpha": (alpha - lr * slope).clamp(0, 1)})


def _mixture(client: Client, x: Tensor, common: Tensor) -> Tensor:
    """Logits (B, classes) of the mixture; ``common`` has the global model's."""
    alpha = client.state["alpha"]
    return alpha * personal_logits(client, x) + (1 - alpha) * common
