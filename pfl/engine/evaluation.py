"""Evaluation of every client's personal model on its own test set (methods.md section 3.5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pfl.engine.client import Batch, Client
from pfl.engine.method import Method, Moment
from pfl.engine.server import Server

AVERAGES = ("pooled", "client_mean", "client_mean_weighted")
"""Over all test samples; over clients; over clients by their training sizes."""


def moments(method: Method, server: Server) -> tuple[Moment, ...]:
    """The moments at which the method's models are evaluated."""
    standard: tuple[Moment, ...] = ("post_aggregation", "post_local")
    return (*standard, "adapted") if method.adaptation(server) else standard


def evaluate(server: Server, method: Method) -> tuple[dict[str, Any], Tensor]:
    """Evaluate one federation at all moments.

    Returns:
        Moment to accuracies in percent (``pooled``, ``client_mean``, ``client_mean_weighted``) and mean
        cross-entropy (``loss``); and the (n,) accuracies in percent at the method's headline moment, NaN for
        a client without test samples.
    """

    def score(client: Client, batch: Batch) -> dict[str, Tensor]:
        logits = method.logits(client, batch.x)
        correct = method.scores(client, batch.x, logits).argmax(-1) == batch.y
        entropy = F.cross_entropy(logits, batch.y, reduction="none")
        return {"correct": batch.sum(correct.to(entropy.dtype)), "loss": batch.sum(entropy)}

    everybody = torch.arange(server.clients, device=server.federation.device)
    averages: dict[str, dict[str, float]] = {}
    per_client: dict[str, Tensor] = {}
    for moment in moments(method, server):
        if moment == "post_local" and not server.local.tensors:
            # Nothing has been mixed, so the bank still holds what the clients trained.
            averages[moment] = averages["post_aggregation"]
            per_client[moment] = per_client["post_aggregation"]
            continue
        tensors: Mapping[str, Tensor] = method.personal(server, moment)
        if moment == "adapted":
            tensors = server.train("adaptation", everybody, tensors, method.adaptation(server)).tensors
        sums = server.collect(score, everybody, tensors, server.federation.test)
        averages[moment], per_client[moment] = _averages(server, sums["correct"].cpu(), sums["loss"].cpu())
    return averages, per_client[method.headline]


def _averages(server: Server, correct: Tensor, loss: Tensor) -> tuple[dict[str, float], Tensor]:
    totals = torch.tensor([len(index) for index in server.federation.test], dtype=torch.float64)
    accuracy = 100 * correct / totals
    tested = totals > 0
    sizes = server.sizes.cpu()[tested]
    means = {
        "pooled": 100 * correct.sum() / totals.sum(),
        "client_mean": accuracy[tested].mean(),
        "client_mean_weighted": (accuracy[tested] * sizes).sum() / sizes.sum(),
        "loss": loss.sum() / totals.sum(),
    }
    return {name: float(value) for name, value in means.items()}, accuracy


def summarise(
    history: list[dict[str, Any]], headline: Moment, evaluated: tuple[Moment, ...]
) -> dict[str, Any]:
    """The last and the best value of every average at every moment, out of the evaluations in ``history``."""
    summary = {
        moment: {average: _last_and_best(history, moment, average) for average in AVERAGES}
        for moment in evaluated
    }
    return {"accuracy": summary[headline], "moments": summary, "headline": headline}


def _last_and_best(history: list[dict[str, Any]], moment: str, average: str) -> dict[str, float]:
    values = [entry[moment][average] for entry in history]
    best = int(np.argmax(values))
    return {"last": values[-1], "best": values[best], "best_round": history[best]["round"]}
