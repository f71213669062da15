"""Explicit classes for every client, for toy studies; no image belongs to two clients."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pfl.core.errors import InvalidInput
from pfl.core.hyper import hyper
from pfl.core.rounding import whole_part
from pfl.data.rule import Draw, PoolingRule, text_option

CLASS = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?(?:x(\d{1,5}))?")


@dataclass(frozen=True)
class ClassSets(PoolingRule):
    """``0-4/2-6/0x4+9x4+3`` means three sets: classes 0 to 4, 2 to 6, and 0, 9 and 3 with ratio 4:4:1.

    The sets are assigned to the clients in turn. A class is cut into equal parts, one per client that has it.
    A client gets its entire parts or, if its set has weights, as much of them as the ratio allows.
    """

    argument: ClassVar[str | None] = "sets"
    clients_from_data: ClassVar[bool] = True

    sets: str = text_option("0-4/5-9", "sets of classes, assigned in turn; with weights as in 0x4+9x4+3")
    size: int = hyper(0, "maximum samples of a client, before the split; 0 means all", low=0, high=10**9)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.weights()

    def check(self, clients: int | None, samples: int | None = None, classes: int | None = None) -> None:
        super().check(clients, samples, classes)
        largest = max(max(of_set) for of_set in self.weights())
        if classes is not None and largest >= classes:
            raise InvalidInput("sets", self.sets, f"classes of at most {classes - 1}")

    def default_clients(self, dataset: object) -> int:
        return len(self.weights())

    def weights(self) -> list[dict[int, int]]:
        """The classes of every set with their weights; weight 0 means that the set has no weights."""
        return [self._weights(text) for text in self.sets.split("/")]

    def assign(self, draw: Draw) -> list[np.ndarray]:
        sets = self.weights()
        weights = [sets[client % len(sets)] for client in range(draw.clients)]
        members = draw.shuffled_classes()
        parts = [
            iter(np.array_split(members[c], max(1, sum(c in own for own in weights))))
            for c in range(draw.classes)
        ]
        return [self._take({c: next(parts[c]) for c in own}, own) for own in weights]

    def _take(self, own: dict[int, np.ndarray], weights: dict[int, int]) -> np.ndarray:
        """Select a client's samples from its parts of its classes."""
        wanted = {c: weights[c] or len(own[c]) for c in own}
        ratios = [len(own[c]) / wanted[c] for c in own if wanted[c]]
        unit = min(ratios, default=0.0)
        if self.size and ratios:
            unit = min(unit, self.size / sum(wanted.values()))
        return np.concatenate([own[c][: whole_part(unit, wanted[c])] for c in own])

    def _weights(self, text: str) -> dict[int, int]:
        weights: dict[int, int] = {}
        for part in text.split("+"):
            match = CLASS.fullmatch(part)
            if not match:
                accepted = "classes and weights below 100,000 as in 0-4/2-6/0x4+9x4+3"
                raise InvalidInput("sets", self.sets, accepted)
            first, last, weight = match.groups()
            unweighted = 1 if "x" in text else 0
            chosen = range(int(first), int(last or first) + 1)
            weights |= dict.fromkeys(chosen, unweighted if weight is None else int(weight))
            if not chosen or weight == "0":
                raise InvalidInput("sets", self.sets, "weights of at least 1 and increasing ranges")
        return weights
