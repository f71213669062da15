"""Gaussian process with expected improvement, after trials that start from the pinned one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.algorithms._starts import STARTS, Starting

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler


class GP(Starting):
    """Optuna's sampler. It ignores the trials that are still running, so that those of one rung may resemble
    each other."""

    def sampler(self) -> BaseSampler:
        from optuna.samplers import GPSampler

        return GPSampler(seed=self.seed, n_startup_trials=STARTS, warn_independent_sampling=False)
