"""Base of the rules of SPFL and PLGA: equal parts of the classes of the official training set."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np

from pfl.core.errors import InvalidInput
from pfl.core.hyper import hyper
from pfl.core.rounding import whole_part
from pfl.data.rule import ClassesRule, Draw, PoolingRule, Split


@dataclass(frozen=True)
class ClassParts(ClassesRule, PoolingRule):
    """Each class is shuffled and cut into one equal part per client; the remainder is unused.

    A client gets the next unassigned part of each class that it drew. Undrawn parts are unused.

    With ``released`` and ``seed=777``, this is exactly the partition of SPFL's scripts
    (https://github.com/MondayCat/PLGA, SPFL/dataset/fede_dataset_split_v1.py and dataset_v4.py): NumPy's
    legacy generator shuffles the classes in turn and then draws the clients' classes, and the first images
    of each part are for training. Training samples keep that order.
    """

    pool: ClassVar[str] = "official training set"

    released: bool = hyper(False, "draw and cut as the released code, which has seed=777")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.released and self.unstratified:
            accepted = "absent, because `released` splits class by class"
            raise InvalidInput("unstratified", self.unstratified, accepted)

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

    def stream(self) -> np.random.Generator:
        if not self.released:
            return super().stream()
        # Both generators have the methods that `assign` calls.
        return cast(np.random.Generator, np.random.RandomState(self.seed))

    def split_clients(self, parts: list[np.ndarray], labels: np.ndarray) -> Split:
        if not self.released:
            return super().split_clients(parts, labels)
        train, test = [], []
        for part in parts:
            starts = np.flatnonzero(np.diff(labels[part], prepend=-1))
            pieces = np.split(part, starts[1:])
            keep = [whole_part(1 - self.test, len(piece)) for piece in pieces]
            train.append(np.concatenate([piece[:n] for piece, n in zip(pieces, keep, strict=True)]))
            test.append(np.concatenate([piece[n:] for piece, n in zip(pieces, keep, strict=True)]))
        return train, test
