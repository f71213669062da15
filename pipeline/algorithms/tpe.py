"""Tree-structured Parzen estimator over all parameters jointly, after trials that start from the pinned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pipeline.algorithms import Algorithm
from pipeline.algorithms._starts import STARTS, start

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler


class TPE(Algorithm):
    """Bergstra et al., 2011, https://papers.nips.cc/paper/4443, multivariate as in Falkner et al., 2018,
    https://arxiv.org/abs/1807.01774."""

    uses_imported = True

    def sampler(self) -> BaseSampler:
        from optuna.samplers import TPESampler

        return TPESampler(seed=self.seed, n_startup_trials=STARTS, multivariate=True, constant_liar=True)

    def start(self, number: int, best: Mapping[str, Any]) -> dict[str, Any] | None:
        return start(self.space, number, best, self.seed)
