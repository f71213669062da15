"""Gaussian process with expected improvement, after trials that start from the pinned configuration."""

from __future__ import annotations

from pipeline.algorithms import Sampler
from pipeline.algorithms._starts import STARTS, Starting


class GP(Starting):
    """Optuna's sampler. It ignores trials that are still running, so trials of one rung may be similar."""

    def sampler(self) -> Sampler:
        from optuna.samplers import GPSampler

        return GPSampler(seed=self.seed, n_startup_trials=STARTS, warn_independent_sampling=False)
