"""Gaussian process with expected improvement, after random trials."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.algorithms import Algorithm

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler


class GP(Algorithm):
    """Optuna's sampler, preceded by at most ten random trials. It ignores trials that are still running, so
    the trials of one rung may resemble each other.
    """

    def sampler(self) -> BaseSampler:
        from optuna.samplers import GPSampler

        return GPSampler(seed=self.seed, warn_independent_sampling=False)
