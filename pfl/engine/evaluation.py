"""Evaluation of every client's personal model on its own test set (methods.md section 3.5)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pfl.engine.local import Backend, Program
from pfl.engine.server import Server

MOMENTS = ("post_aggregation", "post_local")
"""After aggregation: what the client would be given. After local training: what it last trained."""

AVERAGES = ("pooled", "client_mean", "client_mean_weighted")
"""Over all test samples; over clients; over clients by their training sizes."""


def evaluate(server: Server, program: Program, backend: Backend) -> tuple[dict[str, Any], Tensor]:
    """Evaluate both moments of one federation.

    Returns:
        Moment to accuracies in percent (``pooled``, ``client_mean``, ``client_mean_weighted``) and mean
        cross-entropy (``loss``); and the (n,) accuracies in percent at the method's headline moment, NaN for
        a client without test samples.
    """
    scores: dict[str, dict[str, float]] = {}
    per_client: dict[str, Tensor] = {}
    for moment in MOMENTS:
        if moment == "post_local" and not server.local.tensors:
            # Nothing is ever mixed, so the bank holds what the clients trained.
            scores[moment], per_client[moment] = scores["post_aggregation"], per_client["post_aggregation"]
        else:
            correct, loss = backend.evaluate(
                program, server.personal(moment), server.client_state, server.federation.test
            )
            scores[moment], per_client[moment] = _averages(server, correct.cpu(), loss.cpu())
    return scores, per_client[program.method.headline]


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


def summarise(history: list[dict[str, Any]], headline: str) -> dict[str, Any]:
    """The last and the best value of every average at every moment, out of the evaluations in ``history``."""
    moments = {
        moment: {average: _last_and_best(history, moment, average) for average in AVERAGES}
        for moment in MOMENTS
    }
    return {"accuracy": moments[headline], "moments": moments, "headline": headline}


def _last_and_best(history: list[dict[str, Any]], moment: str, average: str) -> dict[str, float]:
    values = [entry[moment][average] for entry in history]
    best = int(np.argmax(values))
    return {"last": values[-1], "best": values[best], "best_round": history[best]["round"]}
