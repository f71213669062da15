"""First configurations of a search: half of them around the pinned one, half spread over the space."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pfl.core.rng import generator

if TYPE_CHECKING:
    import numpy as np
    from optuna.distributions import BaseDistribution

STARTS = 9
"""Number of configurations, as many as the first bracket of successive halving has."""

WIDTH = 0.2
"""Standard deviation around the pinned value, as a share of the range on its scale."""


def starts(
    space: Mapping[str, BaseDistribution], pinned: Mapping[str, Any], seed: int
) -> list[dict[str, Any]]:
    """Alternately spread over the space and near the pinned configuration.

    The idea is PriorBand's (Mallik et al., 2023, https://arxiv.org/abs/2306.12370), whose first proposals are
    likewise drawn from the space and from a prior with equal shares. The former are a Latin hypercube here:
    each parameter takes one value in every part of its range, so that a poor pinned learning rate is noticed.
    Near the pinned configuration, a number is normally distributed around the pinned one, and a choice is
    the pinned one in half of the cases.

    Args:
        seed: the same one gives the same configurations.
    """
    rng = generator(seed, "first configurations of a search")
    parts = (STARTS + 1) // 2
    spread = {name: (rng.permutation(parts) + rng.random(parts)) / parts for name in space}
    configurations = []
    for number in range(STARTS):
        places = {name: float(spread[name][number // 2]) for name in space}
        if number % 2:
            places = {name: _near(distribution, pinned[name], rng) for name, distribution in space.items()}
        configurations.append({name: _at(space[name], place) for name, place in places.items()})
    return configurations


def _near(distribution: Any, pinned: Any, rng: np.random.Generator) -> float:
    """A place near that of the pinned value, from 0 to 1."""
    if choices := getattr(distribution, "choices", None):
        pins = rng.random() < 0.5
        return float((choices.index(pinned) + 0.5) / len(choices) if pins else rng.random())
    scale = math.log if distribution.log else float
    low, high = scale(distribution.low), scale(distribution.high)
    middle = (scale(max(pinned, distribution.low)) - low) / (high - low)
    place = abs(rng.normal(middle, WIDTH)) % 2  # reflected at both ends
    return float(min(place, 2 - place))


def _at(distribution: Any, place: float) -> Any:
    """The value of a parameter at a place between 0 and 1 of its range, or of its choices."""
    if choices := getattr(distribution, "choices", None):
        return choices[min(int(place * len(choices)), len(choices) - 1)]
    low, high = distribution.low, distribution.high
    value = low * (high / low) ** place if distribution.log else low + place * (high - low)
    value = min(max(value, low), high)
    return round(value) if isinstance(low, int) else value
