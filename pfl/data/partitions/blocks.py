"""Blocks of clients with identical classes (PFLlib's "pathological")."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pfl.core.errors import InvalidInput
from pfl.data.rule import ClassesRule, Draw, PoolingRule, redrawn


@dataclass(frozen=True)
class Blocks(ClassesRule, PoolingRule):
    """Each class in turn is divided unequally among the first clients that lack classes.

    A class goes to ceil(clients * classes per client / classes) clients. All but the last draw their
    number of samples from [max(m / 10, min / classes), m), where m is the size of the class divided by the
    number of its clients. The last gets the rest, so the last client of a block is the largest.
    """

    def assign(self, draw: Draw) -> list[np.ndarray]:
        members, takers = draw.shuffled_classes(), self.takers(draw.clients, draw.classes)
        dealt = [(indices, to) for indices, to in zip(members, takers, strict=True) if len(to)]
        unused = sum(map(len, members)) - sum(len(indices) for indices, _ in dealt)
        if unused:
            draw.notes.append(f"samples of classes without a client: {unused}")
        owner = np.concatenate(takers)
        sizes = redrawn(
            lambda: [self._sizes(len(indices), len(to), draw) for indices, to in dealt],
            lambda sizes: int(np.bincount(owner, np.concatenate(sizes), draw.clients).min()),
            self.min,
            draw.notes,
        )
        parts: list[list[np.ndarray]] = [[] for _ in range(draw.clients)]
        for (indices, to), its_sizes in zip(dealt, sizes, strict=True):
            for client, piece in zip(to, np.split(indices, np.cumsum(its_sizes)[:-1]), strict=True):
                parts[client].append(piece)
        return [np.concatenate(pieces) for pieces in parts]

    def takers(self, clients: int, classes: int) -> list[np.ndarray]:
        """The clients of each class, in ascending order."""
        quota = np.full(clients, self.classes)
        takers = []
        for _ in range(classes):
            taker = np.flatnonzero(quota)[: math.ceil(clients * self.classes / classes)]
            quota[taker] -= 1
            takers.append(taker)
        return takers

    def _sizes(self, samples: int, takers: int, draw: Draw) -> np.ndarray:
        """Divide a class's ``samples`` among its clients: counts (takers,)."""
        mean = samples / takers
        low, high = math.ceil(max(mean / 10, self.min / draw.classes)), math.ceil(mean)
        if low >= high:
            accepted = f"a smaller number, because {takers} clients share a class of {samples} images"
            raise InvalidInput("min", self.min, accepted)
        sizes = draw.rng.integers(low, high, takers - 1)
        return np.append(sizes, samples - sizes.sum())
