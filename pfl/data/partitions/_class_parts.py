"""Base of the rules of SPFL and PLGA: equal parts of the classes of the official training set."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pfl.data.rule import ClassesRule, Draw


@dataclass(frozen=True)
class ClassParts(ClassesRule):
    """Each class is shuffled and cut into one equal part per client; the remainder is unused.

    A client gets the next unassigned part of each class that it drew. Parts that nobody drew are unused.
    """

    pool: ClassVar[str] = "official training set"

    @abstractmethod
    def draws(self, draw: Draw) -> np.ndarray:
        """The classes of each client, (clients, classes of a client)."""

    def assign(self, draw: Draw) -> list[np.ndarray]:
        members = draw.shuffled_classes(slice(0, draw.dataset.n_train))
        parts: list[list[np.ndarray]] = [[] for _ in range(draw.clients)]
        given = np.zeros(draw.classes, np.int64)
        for client, its_classes in enumerate(self.draws(draw)):
            for c in its_classes:
                size = len(members[c]) // draw.clients
                parts[client].append(members[c][given[c] * size : (given[c] + 1) * size])
                given[c] += 1
        assigned = [np.concatenate(pieces) for pieces in parts]
        unused = draw.dataset.n_train - sum(map(len, assigned))
        draw.notes.append(f"training samples without a client: {unused}")
        if missing := int((given == 0).sum()):
            draw.notes.append(f"classes without a client: {missing}")
        return assigned
