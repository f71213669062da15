"""Multivariate tree-structured Parzen estimator, after trials that start from the pinned configuration."""

from __future__ import annotations

from pipeline.algorithms import Sampler
from pipeline.algorithms._starts import STARTS, Starting


class TPE(Starting):
    """Bergstra et al., 2011, https://papers.nips.cc/paper/4443, multivariate as in Falkner et al., 2018,
    https://arxiv.org/abs/1807.01774."""

    def sampler(self) -> Sampler:
        from optuna.samplers import TPESampler

        return TPESampler(seed=self.seed, n_startup_trials=STARTS, multivariate=True, constant_liar=True)
