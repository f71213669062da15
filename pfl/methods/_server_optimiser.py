"""Server optimisers: the server takes the participants' mean change as a gradient (Reddi et al.)."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from pfl.core.hyper import hyper
from pfl.core.lazy import torch
from pfl.engine.method import Method
from pfl.engine.mixing import Mixing
from pfl.engine.types import Server, Tensor


@dataclass(frozen=True)
class ServerOptimiser(Method):
    """Base class: x <- x + eta d, where the direction d is computed from Delta = sum_i p_i (y_i - x).

    The p_i are FedAvg's weights. Batch norm's statistics are averaged.
    """

    server_lr: float = hyper(1.0, "eta: learning rate of the server", low=0.0, search=(0.1, 3.0), log=True)

    def initialise(self, server: Server) -> None:
        names = server.groups.trainable
        server.state["mean"] = {name: torch.zeros_like(server.store[name][:1]) for name in names}

    def aggregate(self, server: Server) -> Mixing:
        average, moved = server.average(), {}
        for name in server.groups.trainable:
            start = server.received[name][:1]  # all participants received the same
            change = server.averaged(name, average) - start
            moved[name] = start + self.server_lr * self.direction(server, name, change)
        return {"all": average, **moved}

    @abstractmethod
    def direction(self, server: Server, name: str, change: Tensor) -> Tensor:
        """The direction d (1, *shape) of one tensor from its Delta; updates the optimiser's state."""


@dataclass(frozen=True)
class AdaptiveOptimiser(ServerOptimiser):
    """Base class: d = m / (sqrt(v) + tau), with m <- beta_1 m + (1 - beta_1) Delta and v from Delta^2.

    v is initially tau^2. There is no bias correction.
    """

    server_lr: float = hyper(0.1, "eta: learning rate of the server", low=0.0, search=(1e-3, 1.0), log=True)
    beta1: float = hyper(0.9, "decay of the mean of changes", low=0.0, high=0.9999)
    beta2: float = hyper(0.99, "decay of the mean of squared changes", low=0.0, high=0.9999)
    tau: float = hyper(1e-3, "adaptivity; smaller is more adaptive", low=1e-9, search=(1e-5, 1e-1), log=True)

    def initialise(self, server: Server) -> None:
        super().initialise(server)
        names = server.groups.trainable
        server.state["square"] = {
            name: torch.full_like(server.store[name][:1], self.tau**2) for name in names
        }

    def direction(self, server: Server, name: str, change: Tensor) -> Tensor:
        mean: Tensor = server.state["mean"][name]
        square: Tensor = server.state["square"][name]
        mean.lerp_(change, 1 - self.beta1)
        square.copy_(self.squares(square, change.square()))
        return mean / (square.sqrt() + self.tau)

    @abstractmethod
    def squares(self, old: Tensor, new: Tensor) -> Tensor:
        """v from its ``old`` value and Delta^2."""
