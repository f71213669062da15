"""Dirichlet shares of every class over the clients, with a cap on sizes (Li et al., 2022, NIID-bench)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pfl.core.hyper import hyper
from pfl.data.rule import Draw, PoolingRule, redrawn


@dataclass(frozen=True)
class Dirichlet(PoolingRule):
    """Each class is divided among the clients by shares from Dir(alpha); every sample is used once.

    The cap: a client that already has the average number of samples (N / clients) gets nothing of further
    classes, so sizes vary far less than without the cap. The partition is redrawn until every client has
    ``min`` samples; after 1,000 redraws, single samples are moved to the clients with too few.
    """

    argument: ClassVar[str | None] = "alpha"

    alpha: float = hyper(
        0.1, "concentration; a smaller value means fewer classes per client", low=0.001, high=1e6
    )
    uncapped: bool = hyper(False, "do not cap client sizes")

    def assign(self, draw: Draw) -> list[np.ndarray]:
        members = draw.shuffled_classes()
        sizes = np.array([len(indices) for indices in members])
        self.check(draw.clients, int(sizes.sum()))  # of the images that are divided here
        counts = redrawn(
            lambda: self.counts(sizes, draw), lambda counts: counts.sum(0).min(), self.min, draw.notes
        )
        if moved := top_up(counts, self.min):
            draw.notes.append(f"samples moved to clients with fewer than {self.min}: {moved}")
        pieces = [
            np.split(indices, np.cumsum(row)[:-1]) for indices, row in zip(members, counts, strict=True)
        ]
        return [np.concatenate(of_client) for of_client in zip(*pieces, strict=True)]

    def counts(self, sizes: np.ndarray, draw: Draw) -> np.ndarray:
        """Number of samples per class and client, (classes, clients), given the classes' ``sizes``."""
        clients, average = draw.clients, sizes.sum() / draw.clients
        counts = np.zeros((len(sizes), clients), np.int64)
        for c in np.flatnonzero(sizes):
            open_ = np.ones(clients) if self.uncapped else counts.sum(0) < average
            shares = np.zeros(clients)
            while not shares.any():  # with a small alpha, all clients below the cap can draw zero
                shares = draw.rng.dirichlet(np.full(clients, self.alpha)) * open_
            cuts = (np.cumsum(shares / shares.sum())[:-1] * sizes[c]).astype(np.int64)
            counts[c] = np.diff(cuts, prepend=0, append=sizes[c])
        return counts


def top_up(counts: np.ndarray, minimum: int) -> int:
    """Move single samples, in place, until every column of ``counts`` (classes, clients) sums to ``minimum``.

    A client with too few samples gets one of a class that it has, from the largest client with a sample to
    spare. If no client can spare such a sample, the class is arbitrary.

    Returns:
        The number of samples moved.
    """
    moved = 0
    while (size := counts.sum(0)).min() < minimum:
        needy = size.argmin()
        can_give = counts * (size > minimum)
        of_its_classes = can_give * (counts[:, [needy]] > 0)
        give = of_its_classes if of_its_classes.any() else can_give
        donor = np.where(give.any(0), size, 0).argmax()
        c = give[:, donor].argmax()
        counts[c, donor] -= 1
        counts[c, needy] += 1
        moved += 1
    return moved
