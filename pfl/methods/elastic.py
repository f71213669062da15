"""Elastic aggregation: the server moves a parameter less, the more the clients' outputs depend on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pfl.engine.method import Method, Phase
from pfl.engine.mixing import Mixing
from pfl.hyper import hyper
from pfl.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from pfl.engine.client import Batch, Client, Step
    from pfl.engine.server import Server

SMALLEST = 1e-30
"""Replaces a largest sensitivity of 0, so that the quotient is defined."""


@dataclass(frozen=True)
class Elastic(Method):
    """FedAvg with a smaller step for parameters to which the clients' outputs are more sensitive.

    Before it trains, a participant updates the sensitivities Omega_i of all parameters on each batch of a
    random share of its samples:

        Omega_i <- mu Omega_i + (1 - mu) |d mean_x ||logits(x)||^2 / d w|,

    in evaluation mode and without labels. With the participants' shares p_i of the training samples the
    server sets, element by element,

        w <- w + (1 + tau - sum_i p_i Omega_i / max_i Omega_i) sum_i p_i (theta_i - w).

    Source: Chen et al., Elastic Aggregation for Federated Optimization, CVPR 2023.
    State: ``server.client_state["sensitivity.NAME"]`` (n, *shape), Omega_i, at first 0.
    Evaluated: the global model, without fine-tuning.
    Differs from the authors: their code was not found. The sensitivity is the paper's; its maximum over the
        participants, and the defaults, are those of FL-bench. The batches that measure Omega_i are also used
        for training.
    """

    family = "server optimisation"

    tau: float = hyper(0.5, "the factors of a step are in [tau, 1 + tau]", low=0.0, search=(0.1, 1.0))
    mu: float = hyper(0.95, "weight of the past in a sensitivity", low=0.0, high=1.0, search=(0.5, 0.99))
    share: float = hyper(
        0.3, "share of the training samples on which sensitivities are measured", low=0.01, high=1.0
    )

    def initialise(self, server: Server) -> None:
        for name in server.groups.trainable:
            server.client_state[f"sensitivity.{name}"] = torch.zeros_like(server.bank[name])

    def phases(self, server: Server) -> tuple[Phase, ...]:
        return (Phase(self.share, trains=(), step=self._measure), Phase())

    def aggregate(self, server: Server) -> Mixing:
        average, present, moved = server.average(), server.participants, {}
        server.count("sensitivities", up=len(present) * server.scalars(*server.groups.trainable))
        for name in server.groups.trainable:
            sensitivity = server.client_state[f"sensitivity.{name}"][present]
            mean = torch.tensordot(average.weights.to(sensitivity.dtype), sensitivity, 1)
            factor = 1 + self.tau - mean / sensitivity.amax(0).clamp(min=SMALLEST)
            start = server.received[name][:1]  # all participants received the same
            moved[name] = start + factor * (server.averaged(name, average) - start)
        return {"all": average, **moved}

    def _measure(self, client: Client, batches: tuple[Batch, ...], lr: float | Tensor) -> Step:
        from pfl.engine.client import Step

        (batch,) = batches
        model = {name: client.params[name] for name, _ in client.net.named_parameters()}
        gradient, _ = client.gradient(_squared_norm, batch, at=model)
        client.attach(batch)
        sensitivity = {
            f"sensitivity.{name}": self.mu * client.state[f"sensitivity.{name}"] + (1 - self.mu) * part.abs()
            for name, part in gradient.items()
        }
        return Step({}, self.loss(client, batch), sensitivity)


def _squared_norm(client: Client, batch: Batch) -> Tensor:
    """Mean squared norm of the logits."""
    return batch.mean(client.net(batch.x).square().sum(1))
