"""Evolutionary algorithm that keeps the non-dominated configurations, for several objectives."""

from __future__ import annotations

from pipeline.algorithms import Algorithm, Sampler

POPULATION = 10
"""Configurations per generation; Optuna's default of 50 exceeds the trials of most searches."""


class NSGA2(Algorithm):
    """NSGA-II: Deb et al., 2002, https://doi.org/10.1109/4235.996017."""

    def sampler(self) -> Sampler:
        from optuna.samplers import NSGAIISampler

        return NSGAIISampler(population_size=POPULATION, seed=self.seed)
