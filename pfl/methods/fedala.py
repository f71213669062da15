"""FedALA: each client mixes the global model with its own, element by element, before it trains."""

from __future__ import annotations

from dataclasses import dataclass

from pfl.core.hyper import hyper
from pfl.core.lazy import torch
from pfl.engine.method import Method, Phase, Step
from pfl.engine.mixing import Dispatch, Mixing
from pfl.engine.types import Batch, Client, Server, Tensor
from pfl.methods._stages import stages


@dataclass(frozen=True)
class FedALA(Method):
    """FedAvg in which a client starts from a mixture of its own and the global last layers.

    With theta the client's own layers after its last local training and g the received global ones, a client
    starts from

        theta + (g - theta) * W

    in its last p layers, and from g in the others. W has an element for each parameter and is initially 1. It
    is updated on each batch of a random share of the client's samples:

        W <- clip(W - eta grad * (g - theta), 0, 1),

    with the gradient of the loss with respect to the mixture.

    Source: Zhang et al., AAAI 2023, https://arxiv.org/abs/2212.01197, Algorithm 1. Code compared: the ``ALA``
        module of ``TsingZ0/FedALA``, also in PFLlib by the same authors.
    State: ``server.client_state["own"][NAME]`` (n, *shape), theta, initially the common initialisation;
        ``["weight"][NAME]`` (n, *shape), W.
    Evaluated: the mixture that the client would start the next round from ("adapted", the headline); the W
        learnt for an evaluation is discarded.
    Differs from the authors: W is learnt for one pass in every round (theirs: until the standard deviation of
        the last ten losses is below 0.1 in a client's first mixture, then one pass); the share is redrawn in
        each round as batches in random order, and rounded up to whole batches (theirs: a contiguous part of
        the samples, cut into batches); only participants learn W in a round (theirs: all clients); a layer
        has all its tensors (their p counts tensors: 2 is the last layer with its bias).
    """

    family = "mixing"
    headline = "adapted"
    new_client = "The global model, also as theta; it adapts by the local program of a round."

    layers: int = hyper(1, "p: last layers that are mixed; the others are global", low=1, search=(1, 3))
    eta: float = hyper(1.0, "rate of W", low=0.0, search=(0.1, 10.0), log=True)
    share: float = hyper(
        0.8, "share of the training samples on which W is learnt, in whole batches", low=0.01, high=1.0
    )

    def initialise(self, server: Server) -> None:
        own = {name: server.store[name].clone() for name in self._mixed(server)}
        server.client_state["own"] = own
        server.client_state["weight"] = {name: torch.ones_like(theta) for name, theta in own.items()}

    def phases(self, server: Server) -> tuple[Phase, ...]:
        return (*self.adaptation(server), Phase())

    def aggregate(self, server: Server) -> Mixing:
        for name, own in server.client_state["own"].items():
            own[server.participants] = server.trained[name]
        return {"all": server.average()}

    def adaptation(self, server: Server) -> tuple[Phase, ...]:
        return (Phase(self.share, trains=self._mixed(server), step=self._weigh),)

    def admit(self, server: Server) -> Dispatch:
        for name, own in server.client_state["own"].items():
            own[server.participants] = server.store[name][server.participants]
        return {}

    def adapt(self, server: Server) -> None:
        server.adapt(self.phases(server))  # the mixture alone is still the global model

    def _mixed(self, server: Server) -> tuple[str, ...]:
        """Parameters of the last p layers."""
        return tuple(name for names in stages(server.groups, "layer")[-self.layers :] for name in names)

    def _weigh(self, client: Client, batches: tuple[Batch, ...], lr: float | Tensor) -> Step:
        own, weight = client.state["own"], client.state["weight"]
        difference = {name: client.start[name] - theta for name, theta in own.items()}
        mixture = {name: own[name] + difference[name] * weight[name] for name in own}
        gradient, loss = client.gradient(self.loss, batches[0], at=mixture)
        moved = {
            name: (weight[name] - self.eta * gradient[name] * difference[name]).clamp(0, 1) for name in own
        }
        return Step(
            {name: own[name] + difference[name] * moved[name] for name in own}, loss, {"weight": moved}
        )
