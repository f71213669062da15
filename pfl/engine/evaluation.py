"""Evaluation of every client's personal model on its own test set."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_leaves

from pfl.engine.client import Batch, Client
from pfl.engine.hook_check import check_client_groups, check_models
from pfl.engine.local_training import ADAPTATION
from pfl.engine.method import Method, Moment
from pfl.engine.metrics import Accuracy, Moments
from pfl.engine.returned import check_scores, name_of
from pfl.engine.server import Server

PART_BYTES = 8 << 20
"""Size of the models that a single process evaluates at once, which bounds the memory of an evaluation. With
several processes it is doubled for each, so that each has several clients: cnn4 on two is evaluated 1.5
times as fast."""
PART_BYTES_ON_GPU = 256 << 20


def moments(method: Method, server: Server) -> tuple[Moment, ...]:
    """The moments at which the method's models are evaluated."""
    standard: tuple[Moment, ...] = ("post_aggregation", "post_local")
    return (*standard, "adapted") if method.adaptation(server) else standard


Known = dict[str, tuple[float, float]]
"""Correct predictions and summed cross-entropy of a client's model, by checksum (`_checksums`)."""


def evaluate(
    server: Server,
    method: Method,
    known: Known,
    chosen: Sequence[str] = (),
    on: Sequence[np.ndarray] | None = None,
) -> tuple[Moments, dict[str, Moments], Tensor | None]:
    """Evaluate one federation.

    Args:
        known: scores of the previous evaluation by checksum, replaced in place by those of this one. On a
            CPU, they are reused: between two evaluations, most models do not change.
        chosen: the moments to evaluate; all moments if the method has none of these.
        on: n arrays of pooled indices to evaluate on; by default the clients' test samples.

    Returns:
        Average scores over all clients by moment; the same for each of the method's client groups;
        and the accuracies (n,) in percent at the headline moment, NaN for clients without test
        samples, or None if that moment is not evaluated.
    """

    tested_on = server.federation.test if on is None else on
    met: Known = {}

    def totals(moment: Moment, part: slice) -> Tensor:
        """(K, 2) correct predictions and summed cross-entropy of the clients in ``part``."""
        clients, samples = server.client_ids[part], tested_on[part]
        tensors = evaluated_models(server, method, moment, part)

        def scored(chosen: list[int]) -> list[tuple[float, float]]:
            """Scores of the clients ``chosen`` from the part."""
            rows = {name: _rows(stack, chosen) for name, stack in tensors.items()}
            sums = totals_of(server, method, clients[chosen], rows, [samples[k] for k in chosen])
            return list(zip(sums["correct"].tolist(), sums["loss"].tolist(), strict=True))

        tested = [k for k, index in enumerate(samples) if len(index)]
        values = torch.zeros(len(samples), 2, dtype=torch.float64)
        if not tested:
            return values
        if server.federation.device.type != "cpu":  # on a GPU, scoring is faster than computing checksums
            scores = scored(tested)
        else:
            keys = _checksums(server, part, tensors, tested)
            if new := {key: k for k, key in keys.items() if key not in known}:
                known.update(zip(new, scored(list(new.values())), strict=True))
            met.update({key: known[key] for key in keys.values()})
            scores = [known[key] for key in keys.values()]
        values[tested] = values.new_tensor(scores)
        return values

    sums: dict[Moment, dict[str, Tensor]] = {}
    possible = moments(method, server)
    for moment in [moment for moment in possible if moment in chosen] or possible:
        correct, loss = torch.cat([totals(moment, part) for part in parts(server)]).T
        sums[moment] = {"correct": correct, "loss": loss}
    known.clear()
    known.update(met)

    tests = torch.tensor([len(index) for index in tested_on], dtype=torch.float64)
    sizes = server.sizes.cpu()

    def averages(members: Tensor) -> Moments:
        return {
            moment: averages_of(**sums[moment], tests=tests, sizes=sizes, members=members) for moment in sums
        }

    named = method.client_groups(server)
    check_client_groups(server, named)
    members = {name: members.cpu() & (tests > 0) for name, members in named.items()}
    groups = {name: averages(some) for name, some in members.items() if some.any()}
    per_client = 100 * sums[method.headline]["correct"] / tests if method.headline in sums else None
    return averages(tests > 0), groups, per_client


def totals_of(
    server: Server,
    method: Method,
    clients: Tensor,
    tensors: Mapping[str, Tensor],
    samples: Sequence[np.ndarray],
) -> dict[str, Tensor]:
    """Numbers of correct predictions and summed cross-entropy: ``correct`` and ``loss``, (K,) float64.

    Args:
        clients: (K,) the client whose state each model uses.
        tensors: the models, name to (K, *shape).
        samples: K arrays of pooled indices.
    """

    def score(client: Client, batch: Batch) -> dict[str, Tensor]:
        logits, scores = outputs(server, method, client, batch)
        correct = scores.argmax(-1) == batch.y
        entropy = F.cross_entropy(logits, batch.y, reduction="none")
        return {"correct": batch.sum(correct.to(entropy.dtype)), "loss": batch.sum(entropy)}

    return server.collect(score, clients, tensors, samples)


def outputs(server: Server, method: Method, client: Client, batch: Batch) -> tuple[Tensor, Tensor]:
    """The logits and the scores (B, classes) of a client's model in evaluation."""
    images, classes = len(batch.y), server.federation.classes
    logits = method.logits(client, batch.x)
    check_scores(name_of(method, "logits"), logits, images, classes)
    scores = method.scores(client, batch.x, logits)
    check_scores(name_of(method, "scores"), scores, images, classes)
    return logits, scores


def evaluated_models(server: Server, method: Method, moment: Moment, part: slice) -> Mapping[str, Tensor]:
    """The models evaluated at ``moment`` for the clients in ``part``, one of `parts`: name to (K, *shape)."""
    first, last, _ = part.indices(server.clients)
    only_reads = type(method).personal is Method.personal
    size = last - first if only_reads or method.personal_collects else _at_once(server)
    # The blocks of a single process: a product of matrices rounds a row differently if it has other rows.
    blocks = [slice(k, min(k + size, last)) for k in range(first, last, size)]
    models = [dict(personal_models(server, method, moment, block)) for block in blocks]
    tensors = {name: _joined([of_block.pop(name) for of_block in models]) for name in list(models[0])}
    if moment == "adapted":
        clients = server.client_ids[part]
        return server.train(ADAPTATION, clients, tensors, method.adaptation(server)).tensors
    return tensors


def personal_models(server: Server, method: Method, moment: Moment, part: slice) -> Mapping[str, Tensor]:
    """The validated result of `Method.personal`."""
    tensors = method.personal(server, moment, part)
    check_models(server, tensors, part)
    return tensors


def parts(server: Server) -> list[slice]:
    """Slices of the clients that are evaluated at once, by all processes together."""
    size = _at_once(server)
    if server.processes > 1:
        size *= max(1, 2 * server.processes * PART_BYTES // (size * _model_bytes(server)))
    return [slice(first, first + size) for first in range(0, server.clients, size)]


def _at_once(server: Server) -> int:
    """The number of clients whose models a single process evaluates at once."""
    room = PART_BYTES_ON_GPU if server.federation.device.type == "cuda" else PART_BYTES
    return max(1, room // _model_bytes(server))


def _model_bytes(server: Server) -> int:
    return sum(rows.shape.numel() * rows.dtype.itemsize for rows in server.store.stacks.values())


def _joined(stacks: Sequence[Tensor]) -> Tensor:
    """The stacks (K, *shape) of consecutive clients as one, which is shared if they are the same row."""
    first, *others = stacks
    if not others:
        return first
    same = all(stack.data_ptr() == first.data_ptr() for stack in others)
    if same and all(len(stack) == 1 or _shared(stack) for stack in stacks):
        return first[:1].expand(sum(map(len, stacks)), *first.shape[1:])
    return torch.cat([*stacks])


def _checksums(
    server: Server, part: slice, tensors: Mapping[str, Tensor], chosen: Sequence[int]
) -> dict[int, str]:
    """For each client ``chosen`` from ``part``, a checksum of everything that its scores depend on."""
    digests = {k: hashlib.sha256(str((part.start or 0) + k).encode()) for k in chosen}
    state = [stack[part] for stack in tree_leaves(server.client_state)]
    for stack in (*(tensors[name] for name in sorted(tensors)), *state):
        rows = stack[:1].cpu() if _shared(stack) else stack.cpu()
        of_row = [hashlib.sha256(row.contiguous().numpy().data).digest() for row in rows]
        for k, digest in digests.items():
            digest.update(of_row[0 if _shared(stack) else k])
    return {k: digest.hexdigest() for k, digest in digests.items()}


def _shared(stack: Tensor) -> bool:
    """Whether all rows of a stack (K, *shape) have the same values."""
    return stack.stride(0) == 0


def _rows(stack: Tensor, chosen: list[int]) -> Tensor:
    """The rows ``chosen`` (ascending) of a stack (K, *shape), copied only if necessary."""
    if len(chosen) == len(stack):
        return stack
    return stack[:1].expand(len(chosen), *stack.shape[1:]) if _shared(stack) else stack[chosen]


def averages_of(correct: Tensor, loss: Tensor, tests: Tensor, sizes: Tensor, members: Tensor) -> Accuracy:
    """Average scores of the clients in the mask ``members``, from per-client sums and counts; all (n,)."""
    correct, loss, tests, sizes = correct[members], loss[members], tests[members], sizes[members]
    accuracy = 100 * correct / tests
    return Accuracy(
        pooled=float(100 * correct.sum() / tests.sum()),
        client_mean=float(accuracy.mean()),
        client_mean_weighted=float((accuracy * sizes).sum() / sizes.sum()),
        loss=float(loss.sum() / tests.sum()),
    )
