"""Evaluation of every client's personal model on its own test set (methods.md section 3.5)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
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


Known = dict[str, tuple[float, float]]
"""Correct predictions and summed cross-entropy of one client's model, by the checksum of both."""


def evaluate(server: Server, method: Method, known: Known) -> tuple[dict[str, Any], Tensor]:
    """Evaluate one federation at all moments.

    Args:
        known: of the last evaluation, and changed to that of this one: most clients take no part between two
            evaluations, and many models are at one moment what they are at another.

    Returns:
        Moment to accuracies in percent (``pooled``, ``client_mean``, ``client_mean_weighted``) and mean
        cross-entropy (``loss``), and the same under ``groups`` for each group of clients that the method
        names; and the (n,) accuracies in percent at the method's headline moment, NaN for a client without
        test samples.
    """

    def score(client: Client, batch: Batch) -> dict[str, Tensor]:
        logits = method.logits(client, batch.x)
        correct = method.scores(client, batch.x, logits).argmax(-1) == batch.y
        entropy = F.cross_entropy(logits, batch.y, reduction="none")
        return {"correct": batch.sum(correct.to(entropy.dtype)), "loss": batch.sum(entropy)}

    everybody = torch.arange(server.clients, device=server.federation.device)
    tested = [client for client, index in enumerate(server.federation.test) if len(index)]
    sums: dict[Moment, dict[str, Tensor]] = {}
    met: Known = {}
    for moment in moments(method, server):
        tensors: Mapping[str, Tensor] = method.personal(server, moment)
        if moment == "adapted":
            tensors = server.train("adaptation", everybody, tensors, method.adaptation(server)).tensors
        keys = _checksums(server, tensors, tested)
        new = {client: key for client, key in keys.items() if key not in known}
        if new:
            ids = everybody[list(new)]
            rows = {name: _rows(stack, ids) for name, stack in tensors.items()}
            found = server.collect(score, ids, rows, [server.federation.test[client] for client in new])
            pairs = zip(found["correct"].tolist(), found["loss"].tolist(), strict=True)
            known.update(zip(new.values(), pairs, strict=True))
        met.update({key: known[key] for key in keys.values()})
        values = torch.zeros(server.clients, 2, dtype=torch.float64)
        if tested:
            values[tested] = torch.tensor([known[key] for key in keys.values()], dtype=torch.float64)
        sums[moment] = {"correct": values[:, 0], "loss": values[:, 1]}
    known.clear()
    known.update(met)

    tests = torch.tensor([len(index) for index in server.federation.test], dtype=torch.float64)
    sizes = server.sizes.cpu()

    def averages(members: Tensor) -> dict[str, Any]:
        return {
            moment: _averages(**sums[moment], tests=tests, sizes=sizes, members=members) for moment in sums
        }

    evaluated: dict[str, Any] = averages(tests > 0)
    groups = {name: members.cpu() & (tests > 0) for name, members in method.client_groups(server).items()}
    if groups:
        evaluated["groups"] = {name: averages(members) for name, members in groups.items() if members.any()}
    return evaluated, 100 * sums[method.headline]["correct"] / tests


def _checksums(server: Server, tensors: Mapping[str, Tensor], clients: Sequence[int]) -> dict[int, str]:
    """For each of ``clients`` a checksum of everything that its scores depend on."""
    digests = {client: hashlib.sha256(str(client).encode()) for client in clients}
    for stacks in (tensors, server.client_state):
        for _, stack in sorted(stacks.items()):
            rows = stack.cpu()
            for client, digest in digests.items():
                digest.update(rows[client].contiguous().numpy().data)
    return {client: digest.hexdigest() for client, digest in digests.items()}


def _rows(stack: Tensor, ids: Tensor) -> Tensor:
    """The rows ``ids`` of a stack (n, *shape); what all clients share is not copied for each."""
    shared = stack.stride(0) == 0
    return stack[:1].expand(len(ids), *stack.shape[1:]) if shared else stack[ids]


def _averages(
    correct: Tensor, loss: Tensor, tests: Tensor, sizes: Tensor, members: Tensor
) -> dict[str, float]:
    """Averages over the clients ``members`` (n,), out of sums over test samples and their numbers (n,)."""
    correct, loss, tests, sizes = correct[members], loss[members], tests[members], sizes[members]
    accuracy = 100 * correct / tests
    means = {
        "pooled": 100 * correct.sum() / tests.sum(),
        "client_mean": accuracy.mean(),
        "client_mean_weighted": (accuracy * sizes).sum() / sizes.sum(),
        "loss": loss.sum() / tests.sum(),
    }
    return {name: float(value) for name, value in means.items()}


def summarise(
    history: list[dict[str, Any]], headline: Moment, evaluated: tuple[Moment, ...]
) -> dict[str, Any]:
    """The last and the best value of every average at every moment, out of the evaluations in ``history``;
    the same for each of their ``groups`` of clients."""
    summary = {
        moment: {average: _last_and_best(history, moment, average) for average in AVERAGES}
        for moment in evaluated
    }
    found: dict[str, Any] = {"accuracy": summary[headline], "moments": summary, "headline": headline}
    if "groups" in history[-1]:
        found["groups"] = {
            name: summarise(
                [{"round": entry["round"], **entry["groups"][name]} for entry in history], headline, evaluated
            )
            for name in history[-1]["groups"]
        }
    return found


def _last_and_best(history: list[dict[str, Any]], moment: str, average: str) -> dict[str, float]:
    values = [entry[moment][average] for entry in history]
    best = int(np.argmax(values))
    return {"last": values[-1], "best": values[best], "best_round": history[best]["round"]}
