"""Dirichlet class proportions drawn for every client, with clients of equal size (Hsu et al., 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pfl.core.hyper import hyper
from pfl.data.partitions._own_draws import OwnDraws


@dataclass(frozen=True)
class DirichletClient(OwnDraws):
    """Each client draws its class proportions from a symmetric Dir(alpha), as in FedCAC.

    Proportions are rounded to counts by the largest remainder or, with ``fling_rounding``, as in FedCAC's
    code: floor(x + 1/2), class by class, while samples remain; the last class gets the rest.
    """

    argument: ClassVar[str | None] = "alpha"

    alpha: float = hyper(
        0.1, "concentration; a smaller value means fewer classes per client", low=0.001, high=1e6
    )
    fling_rounding: bool = hyper(False, "round as in FedCAC's code")

    def proportions(self, clients: int, classes: int, rng: np.random.Generator) -> np.ndarray:
        return rng.dirichlet(np.full(classes, self.alpha), clients)

    def counts(self, proportions: np.ndarray, total: int, rng: np.random.Generator) -> np.ndarray:
        if not self.fling_rounding:
            return super().counts(proportions, total, rng)
        wanted = np.floor(proportions / proportions.sum() * total + 0.5).astype(np.int64)
        given: np.ndarray = np.diff(np.minimum(np.cumsum(wanted), total), prepend=0)
        given[np.flatnonzero(proportions)[-1]] += total - given.sum()
        return given
