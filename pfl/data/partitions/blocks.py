"""Blocks of classes for blocks of clients, which so have identical classes (PFLlib's "pathological")."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pfl.data.rule import ClassesRule, Draw, redrawn
from pfl.errors import InvalidInput


@dataclass(frozen=True)
class Blocks(ClassesRule):
    """Each class in turn goes to the first clients that still lack classes, in unequal parts.

    A class has ceil(clients * classes of a client / classes) takers. Each but the last draws its number of
    samples from [max(m / 10, min / classes), m), where m is the class's size divided by its takers; the last
    takes the rest, so that the last client of a block is its largest.
    """

    def assign(self, draw: Draw) -> list[np.ndarray]:
        members = draw.shuffled_classes()
        takers = self.takers(draw.clients, draw.classes)
        unused = sum(len(m) for m, t in zip(members, takers, strict=True) if not len(t))
        if unused:
            draw.notes.append(f"samples of classes that no client takes: {unused}")
        return redrawn(
            lambda: self._cut(members, takers, draw),
            lambda parts: min(len(part) for part in parts),
            self.min,
            draw.notes,
        )

    def takers(self, clients: int, classes: int) -> list[np.ndarray]:
        """The clients of each class, in ascending order."""
        quota = np.full(clients, self.classes)
        takers = []
        for _ in range(classes):
            taker = np.flatnonzero(quota)[: math.ceil(clients * self.classes / classes)]
            quota[taker] -= 1
            takers.append(taker)
        return takers

    def _cut(self, members: list[np.ndarray], takers: list[np.ndarray], draw: Draw) -> list[np.ndarray]:
        parts: list[list[np.ndarray]] = [[] for _ in range(draw.clients)]
        for indices, clients in zip(members, takers, strict=True):
            if not len(clients):
                continue
            mean = len(indices) / len(clients)
            low, high = math.ceil(max(mean / 10, self.min / draw.classes)), math.ceil(mean)
            if low >= high:
                accepted = f"less, as {len(clients)} clients share a class of {len(indices)} images"
                raise InvalidInput("min", self.min, accepted)
            cuts = np.cumsum(draw.rng.integers(low, high, len(clients) - 1))
            for client, piece in zip(clients, np.split(indices, cuts), strict=True):
                parts[client].append(piece)
        return [np.concatenate(pieces) for pieces in parts]
