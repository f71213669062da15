"""Dirichlet shares of every class over the clients, with a cap on sizes (Li et al., 2022, NIID-bench)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pfl.data.rule import Draw, PoolingRule, redrawn
from pfl.hyper import hyper


@dataclass(frozen=True)
class Dirichlet(PoolingRule):
    """Each class is cut at shares drawn from Dir(alpha) over the clients; every sample is used once.

    The cap: a client that already holds an average share (N / clients) gets nothing of the next class, so
    that sizes stay far more even than without it. Everything is drawn again until every client has ``min``
    samples; after 1,000 times single samples are moved to the clients that lack some.
    """

    argument: ClassVar[str | None] = "alpha"

    alpha: float = hyper(
        0.1, "concentration; the smaller, the fewer classes a client has", low=0.001, high=1e6
    )
    uncapped: bool = hyper(False, "leave the cap out")

    def assign(self, draw: Draw) -> list[np.ndarray]:
        members = draw.shuffled_classes()
        sizes = np.array([len(indices) for indices in members])
        counts = redrawn(
            lambda: self.counts(sizes, draw), lambda counts: counts.sum(0).min(), self.min, draw.notes
        )
        if moved := top_up(counts, self.min):
            draw.notes.append(f"samples moved to clients that had fewer than {self.min}: {moved}")
        pieces = [
            np.split(indices, np.cumsum(row)[:-1]) for indices, row in zip(members, counts, strict=True)
        ]
        return [np.concatenate(of_client) for of_client in zip(*pieces, strict=True)]

    def counts(self, sizes: np.ndarray, draw: Draw) -> np.ndarray:
        """How many samples of each class, of ``sizes``, go to each client: (classes, clients)."""
        clients, average = draw.clients, sizes.sum() / draw.clients
        counts = np.zeros((len(sizes), clients), np.int64)
        for c in np.flatnonzero(sizes):
            open_ = np.ones(clients) if self.uncapped else counts.sum(0) < average
            shares = np.zeros(clients)
            while not shares.any():  # at small alpha the clients below the cap can all draw zero
                shares = draw.rng.dirichlet(np.full(clients, self.alpha)) * open_
            cuts = (np.cumsum(shares / shares.sum())[:-1] * sizes[c]).astype(np.int64)
            counts[c] = np.diff(cuts, prepend=0, append=sizes[c])
        return counts


def top_up(counts: np.ndarray, minimum: int) -> int:
    """Move single samples, in place, until every column of ``counts`` (classes, clients) sums to ``minimum``.

    A client that lacks samples gets one of a class that it holds from the largest client that has some to
    give; of any class where nobody has.

    Returns:
        How many samples were moved.
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
