"""First configurations of a search: half of them anywhere in the space, half near the best so far."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from pfl.core.rng import generator
from pipeline.algorithms import Algorithm

STARTS = 9
"""Number of configurations, the size of the first bracket of successive halving."""

WIDTH = 0.15
"""Standard deviation around the best value, as a fraction of the range on its scale."""


class Starting(Algorithm):
    """Begins with `STARTS` trials alternately anywhere in the space and near the best so far.

    The idea is PriorBand's (Mallik et al., 2023, https://arxiv.org/abs/2306.12370), which also samples the
    whole space and the neighbourhood of good configurations. Here, the former form a Latin hypercube: each
    parameter takes one value in every part of its range, so that a poor pinned learning rate is noticed. Near
    the best, numbers are normally distributed, and half of the choices are redrawn.
    """

    uses_imported = True

    def start(self, number: int, best: Mapping[str, Any]) -> dict[str, Any] | None:
        if number > STARTS:
            return None
        if number % 2:
            rng, parts = generator(self.seed, "trials anywhere"), (STARTS + 1) // 2
            spread = {name: (rng.permutation(parts) + rng.random(parts)) / parts for name in self.space}
            places = {name: float(row[number // 2]) for name, row in spread.items()}
        else:
            rng = generator(self.seed, "trials near the best", number)
            places = {name: _near(domain, best[name], rng) for name, domain in self.space.items()}
        return {name: value_at(self.space[name], place) for name, place in places.items()}


def _near(distribution: Any, best: Any, rng: np.random.Generator) -> float:
    """A position near that of the best value, from 0 to 1."""
    if hasattr(distribution, "choices"):
        same = rng.random() < 0.5
        return place_of(distribution, best) if same else float(rng.random())
    place = abs(rng.normal(place_of(distribution, best), WIDTH)) % 2  # reflected at both ends
    return float(min(place, 2 - place))


def place_of(distribution: Any, value: Any) -> float:
    """The position of a value, from 0 to 1, in its range (on its scale) or among its choices."""
    if choices := getattr(distribution, "choices", None):
        return float((choices.index(value) + 0.5) / len(choices))
    scale = math.log if distribution.log else float
    low, high = scale(distribution.low), scale(distribution.high)
    return (scale(max(value, distribution.low)) - low) / (high - low)


def value_at(distribution: Any, place: float) -> Any:
    """The value of a parameter at a position, from 0 to 1, in its range or among its choices."""
    if choices := getattr(distribution, "choices", None):
        return choices[min(int(place * len(choices)), len(choices) - 1)]
    low, high = distribution.low, distribution.high
    value = low * (high / low) ** place if distribution.log else low + place * (high - low)
    value = min(max(value, low), high)
    return round(value) if isinstance(low, int) else value
