"""Elastic aggregation: the more the clients' outputs depend on a parameter, the less the server moves it."""

from __future__ import annotations

from dataclasses import dataclass

from pfl.core.hyper import hyper
from pfl.core.lazy import torch
from pfl.engine.method import Method, Phase, Step
from pfl.engine.mixing import Mixing
from pfl.engine.types import Batch, Client, Server, Tensor

NEGLIGIBLE = 1e-6
"""Sensitivities below this share of the model's highest are treated as rounding errors, for example of biases
before batch norm, whose gradient is 0; their quotients would be arbitrary.
"""
SMALLEST = 1e-30
"""Replaces a highest sensitivity of 0, so that the quotient is defined."""


@dataclass(frozen=True)
class Elastic(Method):
    """FedAvg with a smaller step for parameters to which the clients' outputs are more sensitive.

    Before it trains, a participant updates the sensitivities Omega_i of all parameters on each batch of a
    random share of its samples, in training mode and without labels:

        Omega_i <- mu Omega_i + (1 - mu) |d mean(logits^2) / d w|,

    where the mean is over the batch and the classes. With the participants' shares p_i of the training
    samples, Omega = sum_i p_i Omega_i, and max Omega over the elements of a tensor, the server sets

        w <- w + (1 + tau - Omega / max Omega) sum_i p_i (theta_i - w),

    so that the most sensitive element of every tensor moves by tau times FedAvg's step.

    Source: Chen et al., Elastic Aggregation for Federated Optimization, CVPR 2023. Code compared: the first
        author's ``FederalLab/OpenFed`` (``elastic_aggregation`` and ``ElasticOptimizer``), which has the
        defaults used here.
    State: ``server.client_state["sensitivity"][NAME]`` (n, *shape), Omega_i, initially 0.
    Evaluated: the global model, without fine-tuning.
    Differs from the authors: batch norm's running statistics are not updated while Omega_i is measured;
        training draws other batches than the measurement. A ``share`` of the samples is rounded up to whole
        batches; max Omega is at least the size of rounding errors, so that a tensor without sensitivities
        moves by 1 + tau times FedAvg's step. FL-bench uses the gradient of the loss in evaluation mode, one
        number per tensor (since June 2024 over the whole tensor, previously over its first slice), and the
        maximum over the participants. It has mu = 0.95, and excludes the share, 0.3, from training.
    """

    family = "server optimisation"

    tau: float = hyper(
        0.5,
        "the factors of a step are in [tau, 1 + tau] (authors' code: quantile)",
        low=0.0,
        search=(0.1, 1.0),
    )
    mu: float = hyper(0.9, "weight of the past in a sensitivity", low=0.0, high=1.0, search=(0.5, 0.99))
    share: float = hyper(
        1.0,
        "share of the training samples on which sensitivities are measured",
        low=0.01,
        high=1.0,
        probe=0.4,
    )

    def initialise(self, server: Server) -> None:
        names = server.groups.trainable
        server.client_state["sensitivity"] = {name: torch.zeros_like(server.store[name]) for name in names}

    def phases(self, server: Server) -> tuple[Phase, ...]:
        return (Phase(self.share, step=self._measure), Phase())

    def aggregate(self, server: Server) -> Mixing:
        average, present, moved = server.average(), server.participants, {}
        server.count("sensitivities", up=len(present) * server.scalars(*server.groups.trainable))
        means = {}
        for name, sensitivity in server.client_state["sensitivity"].items():
            weights = average.weights.to(sensitivity.dtype)
            means[name] = torch.tensordot(weights, sensitivity[present], 1)
        highest = {name: mean.max() for name, mean in means.items()}
        negligible = (NEGLIGIBLE * torch.stack([*highest.values()]).max()).clamp(min=SMALLEST)
        for name, mean in means.items():
            factor = 1 + self.tau - mean / torch.maximum(highest[name], negligible)
            start = server.received[name][:1]  # all participants received the same
            moved[name] = start + factor * (server.averaged(name, average) - start)
        return {"all": average, **moved}

    def _measure(self, client: Client, batches: tuple[Batch, ...], lr: float | Tensor) -> Step:
        (batch,) = batches
        with client.statistics_kept():
            gradient, _ = client.gradient(_mean_square, batch)
            loss = self.loss(client, batch)
        past = client.state["sensitivity"]
        moved = {name: self.mu * past[name] + (1 - self.mu) * part.abs() for name, part in gradient.items()}
        return Step({}, loss, {"sensitivity": moved})


def _mean_square(client: Client, batch: Batch) -> Tensor:
    """Mean square of the logits."""
    return batch.mean(client.net(batch.x).square().mean(1))
