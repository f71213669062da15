"""Base of FedCAC's rules: clients draw their samples independently of each other."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pfl.core.errors import InvalidInput
from pfl.core.hyper import hyper
from pfl.core.rng import generator
from pfl.data.dataset import Dataset
from pfl.data.rule import Rule, Split, apportion

MAX_SAMPLES = 100_000_000
"""Maximum number of samples drawn for all clients together: 800 MB of indices."""


@dataclass(frozen=True)
class OwnDraws(Rule):
    """Every client draws a fixed number of samples, with the same class proportions in training and test.

    An image occurs once within a client, unless the client needs more images of a class than there are.
    Different clients may share images. The notes count both cases.
    """

    pool: ClassVar[str] = "training samples from the training set, test samples from the test set"

    size: int = hyper(500, "training samples of a client", low=1)
    test_size: int = hyper(100, "test samples of a client", low=1)

    def check(self, clients: int | None, samples: int | None = None, classes: int | None = None) -> None:
        super().check(clients, samples, classes)
        if clients is not None and (total := clients * (self.size + self.test_size)) > MAX_SAMPLES:
            raise InvalidInput("clients * (size + test_size)", total, f"at most {MAX_SAMPLES:,} samples")

    @abstractmethod
    def proportions(self, clients: int, classes: int, rng: np.random.Generator) -> np.ndarray:
        """The share of each class in each client's samples: (clients, classes), rows that sum to 1."""

    def counts(self, proportions: np.ndarray, total: int, rng: np.random.Generator) -> np.ndarray:
        """Samples of each class that sum to ``total``."""
        return apportion(proportions, total, rng)

    def divide(self, dataset: Dataset, clients: int | None, notes: list[str]) -> Split:
        self.check(clients, len(dataset.labels), len(dataset.classes))
        assert clients is not None
        if dataset.n_train == len(dataset.labels):
            raise InvalidInput("dataset", dataset.name, "one with a test set, which this rule draws from")
        rng = generator(self.seed, "partition")
        proportions = self.proportions(clients, len(dataset.classes), rng)
        train = self._draw(dataset, slice(0, dataset.n_train), proportions, self.size, rng)
        test = self._draw(dataset, slice(dataset.n_train, None), proportions, self.test_size, rng)
        for name, lists in (("training", train), ("test", test)):
            own = sum(len(np.unique(indices)) for indices in lists)
            repeats = sum(map(len, lists)) - own
            shared = own - len(np.unique(np.concatenate(lists)))
            notes.append(f"{name} samples repeated within a client: {repeats}; shared with another: {shared}")
        return train, test

    def _draw(
        self, dataset: Dataset, pool: slice, proportions: np.ndarray, total: int, rng: np.random.Generator
    ) -> list[np.ndarray]:
        labels = dataset.labels[pool]
        members = [np.flatnonzero(labels == c) + (pool.start or 0) for c in range(proportions.shape[1])]
        there = np.array([len(indices) > 0 for indices in members])
        clients = []
        for row in proportions:
            if not (row * there).any():
                which = "test" if pool.start else "training"
                raise InvalidInput("partition", dataset.name, f"a {which} set with images of every class")
            counts = self.counts(row * there, total, rng)
            drawn = [
                rng.choice(indices, count, replace=count > len(indices))
                for indices, count in zip(members, counts, strict=True)
                if count
            ]
            clients.append(np.sort(np.concatenate(drawn)))
        return clients
