"""Independent uniform draws."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.algorithms import Algorithm

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler


class Random(Algorithm):
    """Uniform on the scale of each range (Bergstra and Bengio, 2012, https://jmlr.org/papers/v13/bergstra12a.html)."""

    def sampler(self) -> BaseSampler:
        from optuna.samplers import RandomSampler

        return RandomSampler(seed=self.seed)
