"""FedAvgM: FedAvg with momentum on the server."""

from __future__ import annotations

from dataclasses import dataclass

from pfl.core.hyper import hyper
from pfl.engine.types import Server, Tensor
from pfl.methods._server_optimiser import ServerOptimiser


@dataclass(frozen=True)
class FedAvgM(ServerOptimiser):
    """The server moves by m <- beta m + Delta, where Delta is the participants' mean change.

    Source: Hsu et al., 2019, https://arxiv.org/abs/1909.06335, Section 4.3.
    State: ``server.state["mean"][NAME]`` (1, *shape), m.
    Evaluated: the global model, without fine-tuning.
    Differs from the authors: nothing in the rule. Their own code was not found; that of Reddi et al.
        (https://github.com/google-research/federated) has the same rule. Their grid of beta is
        0, 0.7, 0.9, 0.97, 0.99, 0.997. Batch norm's statistics are averaged and have no momentum. MOON's code
        has a FedAvgM with damping: m <- beta m + (1 - beta) Delta.
    """

    family = "server optimisation"

    beta: float = hyper(0.9, "momentum of the server", low=0.0, high=0.9999, search=(0.0, 0.97))

    def direction(self, server: Server, name: str, change: Tensor) -> Tensor:
        mean: Tensor = server.state["mean"][name]
        return mean.mul_(self.beta).add_(change)
