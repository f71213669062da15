"""Every combination of evenly spaced values, in random order."""

from __future__ import annotations

import math
from typing import Any

from pipeline.algorithms import Algorithm, Distribution, Sampler

POINTS = 5
"""Number of values per range, including both ends."""


class Grid(Algorithm):
    """Five values of each range, on its scale, and all choices."""

    def sampler(self) -> Sampler:
        from optuna.samplers import GridSampler

        class Combinations(GridSampler):
            def after_trial(self, *_: object) -> None:
                """No-op: `Grid.size` ends the search, and Optuna's check fails for the pinned trial."""

        return Combinations({name: _values(domain) for name, domain in self.space.items()}, self.seed)

    @property
    def size(self) -> int:
        return math.prod(len(_values(domain)) for domain in self.space.values())


def _values(distribution: Distribution) -> list[Any]:
    """The values of a parameter, from the lowest to the highest."""
    import numpy as np
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)
    assert isinstance(distribution, IntDistribution | FloatDistribution)
    space = np.geomspace if distribution.log else np.linspace
    values: list[float] = space(distribution.low, distribution.high, POINTS).tolist()
    if isinstance(distribution, IntDistribution):
        return sorted({round(value) for value in values})
    return values
