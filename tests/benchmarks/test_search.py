"""What a search selects, replayed on a pool of learning curves."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.search.pools import CURVES, read
from benchmarks.search.selection import DRAWS, of_copies, poor, replayed


@pytest.mark.slow
def test_from_a_learning_rate_that_is_a_hundred_times_too_low_a_search_recovers():
    (good,) = (pool for pool in read(CURVES / "digits.npz") if pool.method == "fedper")
    bad = poor(good)
    assert bad.configurations[-1] == good.configurations[0]
    assert bad.final[0] < good.final[0] - 20
    selected = replayed(bad, 0, budget=3, near=True)
    assert bad.final[selected] > bad.final[0] + 0.95 * (good.final[0] - bad.final[0])


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_copies_of_a_pinned_configuration_are_selected_in_at_most_5_percent_of_draws(seeds):
    share = of_copies(np.random.default_rng(0).normal(80, 1, 43), 5, seeds)
    assert share <= 0.05 + 2 * (0.05 * 0.95 / DRAWS) ** 0.5
