"""Evolutionary algorithm that keeps the non-dominated configurations, for several objectives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.algorithms import Algorithm

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

POPULATION = 10
"""Number of configurations of a generation; Optuna's 50 are more than most searches have."""


class NSGA2(Algorithm):
    """NSGA-II: Deb et al., 2002, https://doi.org/10.1109/4235.996017."""

    def sampler(self) -> BaseSampler:
        from optuna.samplers import NSGAIISampler

        return NSGAIISampler(population_size=POPULATION, seed=self.seed)
