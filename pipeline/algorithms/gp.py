"""Gaussian process with expected improvement, after trials that start from the pinned one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pipeline.algorithms import Algorithm
from pipeline.algorithms._starts import STARTS, start

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler


class GP(Algorithm):
    """Optuna's sampler. It ignores the trials that are still running, so that those of one rung may resemble
    each other."""

    uses_imported = True

    def sampler(self) -> BaseSampler:
        from optuna.samplers import GPSampler

        return GPSampler(seed=self.seed, n_startup_trials=STARTS, warn_independent_sampling=False)

    def start(self, number: int, best: Mapping[str, Any]) -> dict[str, Any] | None:
        return start(self.space, number, best, self.seed)
