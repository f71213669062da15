"""Per-FedAvg: a global model that is personalised by a little local training (MAML)."""

from __future__ import annotations

from dataclasses import dataclass

from pfl.core.hyper import hyper
from pfl.engine.method import Method, Phase, Step
from pfl.engine.mixing import Mixing
from pfl.engine.types import Batch, Client, Server, Tensor

EPSILON = 1e-8
"""Lower bound of the gradient's norm in the scaling to the finite difference's length."""


@dataclass(frozen=True)
class PerFedAvg(Method):
    """A global model from which one step with learning rate alpha gives a good personal model (MAML).

    A meta-step on independent batches B1, B2, B3 is

        w' = w - alpha grad f(w; B1),    g = grad f(w'; B2),
        fo:  w <- w - beta g,
        hf:  w <- w - beta (g - alpha h),
             h = (grad f(w + e g; B3) - grad f(w - e g; B3)) / (2 e),    e = delta / max(||g||, 1e-8),

    where beta is the configuration's learning rate; its momentum and weight decay act on this step alone.
    Batch norm's running statistics are not updated at w +- e g. Uploads are averaged uniformly. ``p2`` is
    what the code of SPFL calls Per-FedAvg: two plain SGD steps on each batch.

    Source: Fallah et al., NeurIPS 2020, https://arxiv.org/abs/2002.07948, Algorithm 1.
    State: none.
    Evaluated: after the client has trained a copy of the global model at rate alpha ("adapted", the
        headline).
    Differs from the authors: the finite difference has length delta for every gradient (theirs: delta
        times the gradient, which float32 cannot resolve where the gradient is small); as many meta-steps as
        the epochs' batches allow (theirs: a fixed tau, ``steps``); an epoch of adaptation (theirs: one step,
        ``adapt_epochs`` 0).
    """

    family = "meta-learning"
    headline = "adapted"

    variant: str = hyper(
        "fo", "first-order, Hessian-free, or SPFL's two plain steps per batch", choices=("fo", "hf", "p2")
    )
    alpha: float = hyper(0.01, "rate of the adaptation", low=0.0, search=(1e-4, 1e-1), log=True)
    delta: float = hyper(
        1e-3,
        "hf: length of the finite difference",
        low=1e-8,
        search=(1e-4, 1e-2),
        log=True,
        when=("variant", "hf"),
    )
    steps: int = hyper(0, "tau: meta-steps per round; 0 means as many as the epochs' batches allow", low=0)
    adapt_epochs: int = hyper(
        1,
        "epochs of adaptation; 0 means one step, as in the paper",
        low=0,
        search=(1, 5),
        adaptation=True,
    )

    def phases(self, server: Server) -> tuple[Phase, ...]:
        steps = self.steps or None
        if self.variant == "p2":
            return (Phase(steps=steps, repeat=2),)
        return (Phase(steps=steps, batches=2 + (self.variant == "hf"), gradient=self._meta_gradient),)

    def aggregate(self, server: Server) -> Mixing:
        return {"all": server.uniform()}

    def adaptation(self, server: Server) -> tuple[Phase, ...]:
        return (Phase(self.adapt_epochs, steps=None if self.adapt_epochs else 1, step=self._adapt),)

    def _meta_gradient(self, client: Client, batches: tuple[Batch, ...]) -> tuple[dict[str, Tensor], Tensor]:
        first, second, *third = batches
        gradient, _ = client.gradient(self.loss, first)
        adapted = {name: weight - self.alpha * gradient[name] for name, weight in client.weights.items()}
        gradient, loss = client.gradient(self.loss, second, at=adapted)
        if not third:
            return gradient, loss
        curvature = self._hessian_product(client, third[0], gradient)
        return {name: slope - self.alpha * curvature[name] for name, slope in gradient.items()}, loss

    def _hessian_product(self, client: Client, batch: Batch, vector: dict[str, Tensor]) -> dict[str, Tensor]:
        """The Hessian of the loss times ``vector``, by central differences."""
        length = client.flat(vector).norm()
        scale = self.delta / length.clamp(min=EPSILON)

        def slope(sign: int) -> dict[str, Tensor]:
            at = {name: weight + sign * scale * vector[name] for name, weight in client.weights.items()}
            return client.gradient(self.loss, batch, at)[0]

        with client.statistics_kept():
            ahead, behind = slope(1), slope(-1)
        return {name: (ahead[name] - behind[name]) / (2 * scale) for name in vector}

    def _adapt(self, client: Client, batches: tuple[Batch, ...], lr: float | Tensor) -> Step:
        gradient, loss = client.gradient(self.loss, batches[0])
        return Step({name: w - self.alpha * gradient[name] for name, w in client.weights.items()}, loss)
