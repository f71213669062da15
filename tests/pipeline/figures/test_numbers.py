"""The numbers of a figure: one value at each place, and every class of pFedSim's Figure 2."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from pfl.core.errors import InvalidInput
from pipeline.figures.numbers import Numbers, Point
from pipeline.figures.plots import heads


def test_two_values_at_one_place_are_refused():
    with pytest.raises(InvalidInput, match=r"points: a, b, 0\.0 is not accepted; expected one value"):
        Numbers([Point("a", "b", 0.0, 1.0), Point("a", "b", 0.0, 2.0)])


def test_every_class_of_every_pair_counts_as_owned_by_both_or_by_one():
    owns = [[True, True, False], [True, False, False], [False, True, True]]
    measured = {"cosines": np.arange(27.0).reshape(3, 3, 3), "owns": owns}
    runs = SimpleNamespace(measurements=lambda _: [(None, [[measured]])])
    panel = heads.measure(runs).values[heads.KINDS]
    assert sorted(panel["both or neither"].values()) == [1.0, 11.0, 19.0]
    assert sorted(panel["one only"].values()) == [2.0, 5.0, 10.0, 14.0, 20.0, 23.0]
