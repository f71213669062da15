"""Covariance matrix adaptation evolution strategy."""

from __future__ import annotations

from pipeline.algorithms import Algorithm, Sampler


class CMAES(Algorithm):
    """Hansen, 2016, https://arxiv.org/abs/1604.00772. Categorical parameters, and parameters that only some
    trials have, are drawn at random.
    """

    multi_objective = False

    def sampler(self) -> Sampler:
        from optuna.samplers import CmaEsSampler

        return CmaEsSampler(seed=self.seed, warn_independent_sampling=False)
