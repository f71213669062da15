"""A fixed number of random classes for every client; all classes and all samples are used."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pfl.core.errors import InvalidInput
from pfl.data.rule import ClassesRule, Draw, PoolingRule


@dataclass(frozen=True)
class Pathological(ClassesRule, PoolingRule):
    """The numbers of clients per class differ by at most one; the clients of a class share it equally."""

    def check(self, clients: int | None, samples: int | None = None, classes: int | None = None) -> None:
        super().check(clients, samples, classes)
        if clients is not None and classes is not None and clients * self.classes < classes:
            least = -(-classes // clients)
            raise InvalidInput(
                "classes", self.classes, f"at least {least}, so that {clients} clients hold all {classes}"
            )

    def assign(self, draw: Draw) -> list[np.ndarray]:
        holds = deal(draw.clients, self.classes, draw.classes, draw.rng)
        parts: list[list[np.ndarray]] = [[] for _ in range(draw.clients)]
        for c, members in enumerate(draw.shuffled_classes()):
            holders = draw.rng.permutation(np.flatnonzero(holds[:, c]))
            for client, piece in zip(holders, np.array_split(members, len(holders)), strict=True):
                parts[client].append(piece)
        return [np.concatenate(pieces) for pieces in parts]


def deal(clients: int, each: int, classes: int, rng: np.random.Generator) -> np.ndarray:
    """Deal every client ``each`` distinct classes; the numbers of clients per class differ by at most one.

    Clients draw in turn, with probabilities proportional to how often each class is still to be dealt. A
    class that is to be dealt as often as clients remain is assigned without a draw, so that no client has to
    take a class twice.

    Returns:
        bool (clients, classes): whether the client has the class.
    """
    left = np.full(classes, clients * each // classes)
    left[rng.permutation(classes)[: clients * each % classes]] += 1
    holds = np.zeros((clients, classes), bool)
    for turn, client in enumerate(rng.permutation(clients)):
        must = left == clients - turn
        weight = np.where(must, 0, left)
        free = each - must.sum()
        holds[client] = must
        if free:
            holds[client, rng.choice(classes, free, replace=False, p=weight / weight.sum())] = True
        left -= holds[client]
    return holds
