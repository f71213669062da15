"""The accepted values of a hyperparameter, in words."""

from __future__ import annotations

import re

import pytest

from pfl.core.errors import InvalidInput
from pfl.core.hyper import Hyperparameter


@pytest.mark.parametrize(
    ("bounds", "default", "accepted"),
    [
        ({}, 0.5, "a number"),
        ({}, 5, "an integer"),
        ({"low": 0.0}, 0.5, "a non-negative number"),
        ({"low": 1}, 5, "a positive integer"),
        ({"low": 1.0}, 5.0, "a number of at least 1"),
        ({"high": 1.0}, 0.5, "a number of at most 1"),
        ({"low": 0.0, "high": 1.0}, 0.5, "a number in [0, 1]"),
        ({"choices": ("a", "b")}, "a", "one of a, b"),
    ],
)
def test_a_value_outside_the_bounds_is_told_all_bounds(bounds, default, accepted):
    with pytest.raises(InvalidInput, match=f"expected {re.escape(accepted)}(, up to .*)?$"):
        Hyperparameter("about", **bounds).check("a", float("inf"), default)
