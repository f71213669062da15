"""Independent uniform draws."""

from __future__ import annotations

from pipeline.algorithms import Algorithm, Sampler


class Random(Algorithm):
    """Uniform on the scale of each range (Bergstra and Bengio, 2012, https://jmlr.org/papers/v13/bergstra12a.html)."""

    def sampler(self) -> Sampler:
        from optuna.samplers import RandomSampler

        return RandomSampler(seed=self.seed)
