"""Searches that are replayed on a pool of learning curves."""

from __future__ import annotations

import pytest

from benchmarks.search.compare import BUDGET, SEARCHES, at, final


@pytest.mark.parametrize("name", SEARCHES)
def test_a_replayed_search_is_the_same_again_and_stays_near_its_budget(name):
    first, again = (SEARCHES[name]("digits-20", "fedper", 1) for _ in range(2))
    assert first == again
    assert 0 < first[-1][0] < BUDGET + 1  # the last whole run may begin just below it


def test_the_best_of_a_search_is_what_it_had_found_by_then():
    progress = [(2.0, 80.0), (5.0, 85.0)]
    assert [at(progress, cost) for cost in (1, 2, 4, 5)] == [0, 80, 80, 85]


def test_a_configuration_counts_with_the_mean_over_the_seeds():
    assert final("digits-20", "fedper", 0) == pytest.approx(96.87, abs=0.01)
