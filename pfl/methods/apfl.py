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

    with no gradient through the brackets. Before that, with ``adaptive``, it updates alpha_i once per round:
    alpha_i <- clip(alpha_i - eta s, 0, 1), with the configuration's learning rate eta and, as ``slope`` says,

        code:    s = <v' - w', alpha df/dv + (1 - alpha) df/dw'> + 0.02 alpha,
        paper:   s = <v - w, the gradient of the model with the parameters alpha v + (1 - alpha) w>,
        logits:  s = d (f + 0.01 alpha^2) / d alpha.

    In "code", w' and v' are the models after a step on the batch, w' first, as in the authors' code: the
    gradients are those of the mixture's loss with respect to the parameters, at v and w'. On the digits, with
    two classes per client, it leaves alpha near 0.5, and the other two raise it to about 0.75.

    Source: Deng et al., 2020, https://arxiv.org/abs/2003.13461, Algorithm 1 and Eq. 12. Code compared:
        ``MLOPTPSU/FedTorch`` (``alpha_update``), by the authors.
    State: ``server.client_state["alpha"]`` (n,), alpha_i.
    Evaluated: the mixture with the global model as the client trained it ("post_local", the headline), or as
        aggregation left it ("post_aggregation").
    Differs from the authors: logits are mixed, as in their code (paper: the models' parameters; the two agree
        for linear models); alpha is updated before the round's training, on a separate batch (their code: in
        the first step); in training both models step from the same point, as in the paper (their code: v_i
        steps after w has stepped on the batch); models are averaged by training samples. FL-bench updates
        alpha on every batch of the first epoch; PFLlib trains v_i on its own loss and overwrites it with the
        mixture of the parameters after each round.
    """

    family = "personal model"
    headline = "post_local"
    new_client = "The global model, also as its personal model."

    alpha: float = hyper(
        0.5, "weight of the personal model at first", low=0.0, high=1.0, search=(0.1, 0.9), probe=0.4
    )
    adaptive: bool = hyper(True, "each client moves its weight once per round")
    slope: str = hyper(
        "code",
        "what alpha descends along: the authors' code, their paper, or the derivative of the mixture's loss",
        choices=("code", "paper", "logits"),
    )

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

    def admit(self, server: Server) -> Dispatch:
        return as_global(server)

    def _weigh(self, client: Client, batches: tuple[Batch, ...], lr: float | Tensor) -> Step:
        (batch,) = batches
        alpha = client.state["alpha"]
        with client.statistics_kept():
            slopes = {"code": self._code_slope, "paper": self._paper_slope, "logits": self._logits_slope}
            slope, loss = slopes[self.slope](client, batch, lr)
        return Step({}, loss, {"alpha": (alpha - lr * slope).clamp(0, 1)})

    def _code_slope(self, client: Client, batch: Batch, lr: float | Tensor) -> tuple[Tensor, Tensor]:
        alpha, twins = client.state["alpha"], counterparts(client)
        own_step, _ = client.gradient(self.loss, batch)
        moved = {name: client.params[name] - lr * own_step[name] for name in twins}
        gradient, loss = client.gradient(_mixture_loss, batch, at={**client.weights, **moved})
        products = [
            (client.params[twin] - lr * gradient[twin] - moved[name])
            * (alpha * gradient[twin] + (1 - alpha) * gradient[name])
            for name, twin in twins.items()
        ]
        return torch.stack([product.sum() for product in products]).sum() + WEIGHT_DECAY * alpha, loss

    def _paper_slope(self, client: Client, batch: Batch, lr: float | Tensor) -> tuple[Tensor, Tensor]:
        twins, params = counterparts(client), client.params
        away = {name: params[twin] - params[name] for name, twin in twins.items()}
        mixed = {name: params[name] + client.state["alpha"] * part for name, part in away.items()}
        gradient, loss = client.gradient(_global_loss, batch, at=mixed)
        return torch.stack([(gradient[name] * part).sum() for name, part in away.items()]).sum(), loss

    def _logits_slope(self, client: Client, batch: Batch, lr: float | Tensor) -> tuple[Tensor, Tensor]:
        alpha = client.state["alpha"]
        own, common = personal_logits(client, batch.x), client.net(batch.x)
        mixture = alpha * own + (1 - alpha) * common
        target = torch.nn.functional.one_hot(batch.y, mixture.shape[1])
        slope = batch.mean(((mixture.softmax(1) - target) * (own - common)).sum(1))
        return slope + WEIGHT_DECAY * alpha, batch.cross_entropy(mixture)


def _mixture_loss(client: Client, batch: Batch) -> Tensor:
    """The loss of the mixture, with gradients for both models."""
    return batch.cross_entropy(_mixture(client, batch.x, client.net(batch.x)))


def _global_loss(client: Client, batch: Batch) -> Tensor:
    return batch.cross_entropy(client.net(batch.x))


def _mixture(client: Client, x: Tensor, common: Tensor) -> Tensor:
    """Logits (B, classes) of the mixture; ``common`` are the global model's."""
    alpha: Tensor = client.state["alpha"]
    return alpha * personal_logits(client, x) + (1 - alpha) * common
