"""Searches that are replayed on a pool of learning curves."""

from __future__ import annotations

import pytest

from benchmarks.search.compare import BUDGET, SEARCHES, at, final
from benchmarks.search.pool import POOR
from benchmarks.search.selection import DRAWS, of_copies, replayed


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


def test_from_a_learning_rate_that_is_a_hundred_times_too_low_a_search_recovers():
    poor, pinned = final("digits-20", "fedper", POOR), final("digits-20", "fedper", 0)
    assert poor < pinned - 40
    selected = replayed("digits-20", "fedper", 0, budget=3, poor=True, near=True)
    assert final("digits-20", "fedper", selected) > poor + 0.95 * (pinned - poor)


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_copies_of_a_pinned_configuration_are_selected_in_at_most_5_percent_of_draws(seeds):
    today, earlier = of_copies("fedper", 5, seeds)
    assert today <= 0.05 + 2 * (0.05 * 0.95 / DRAWS) ** 0.5
    assert earlier > 0.3
