"""Search algorithms, one per file. Plugins add more through the entry-point group `pipeline.algorithms`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from pfl.core.registry import Registry, only_class

if TYPE_CHECKING:
    from optuna import distributions, samplers

Distribution: TypeAlias = "distributions.BaseDistribution"
Sampler: TypeAlias = "samplers.BaseSampler"
"""Optuna's types for annotations; Optuna is imported only when a search begins."""


@dataclass(frozen=True)
class Algorithm:
    """Proposes the configurations of a search in one cell.

    The pinned configuration is always trial 0 and is not proposed. Trials that a search stops early are
    reported to the sampler as pruned.

    Args:
        space: the searched parameters and their distributions.
        seed: the sampler's seed; the same seed and results must give the same proposals.

    Attributes:
        multi_objective: whether the sampler accepts several objectives.
        uses_imported: whether the sampler learns from trials that it did not propose.
    """

    multi_objective: ClassVar[bool] = True
    uses_imported: ClassVar[bool] = False

    space: Mapping[str, Distribution]
    seed: int

    def sampler(self) -> Sampler:
        """Return the Optuna sampler that proposes the configurations."""
        raise NotImplementedError

    def start(self, number: int, best: Mapping[str, Any]) -> dict[str, Any] | None:
        """The configuration of an early trial; None, the default, leaves it to the sampler.

        Args:
            number: the trial's number; the pinned configuration is 0.
            best: the searched parameters of the best trial so far.
        """
        return None

    @property
    def size(self) -> float:
        """Number of configurations that the algorithm can propose."""
        return math.inf


ALGORITHMS: Registry[type[Algorithm]] = Registry(
    "search algorithm", "pipeline.algorithms", only_class(Algorithm)
)
