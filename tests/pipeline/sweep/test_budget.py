"""What a search may train."""

from __future__ import annotations

import pytest

from pfl.core.config import Config
from pfl.core.errors import InvalidInput
from pipeline.spec.search_space import Search
from pipeline.sweep.budget import Account, Outcome, SearchPlan, SearchStep, rungs
from pipeline.sweep.search import plan_of

PINNED = Config(rounds=20, eval_every=5)


def test_rungs_lie_at_evaluations_and_after_the_warm_up():
    assert rungs(200, 10, warm_up=20) == (40, 80, 200)
    assert rungs(3, 5) == (3,)


def test_a_budget_counts_runs_with_all_seeds():
    plan = plan_of(PINNED, Search(budget=4), [0, 1, 2])
    assert plan.budget == 4 * 3 * 20


def test_a_budget_below_one_trial_is_one_line():
    with pytest.raises(InvalidInput, match=r"search\.budget: 0\.5 is not accepted; expected at least 0\.67"):
        plan_of(PINNED, Search(budget=0.5), [0, 1, 2])
    assert plan_of(PINNED, Search(budget=0.67), [0, 1, 2])


def test_a_trial_is_charged_the_samples_that_it_has_trained_on():
    account = Account(SearchPlan((5, 20), (0, 1), budget=200))
    account.charge([SearchStep(0, 0, 0, 5), SearchStep(1, 0, 0, 5)], [Outcome(50.0, 100), Outcome(60.0, 250)])
    assert account.rate(1) == account.highest_rate == 2.5
    assert account.left == 200 - 5 - 2.5 * 5
    account.charge([SearchStep(1, 0, 5, 20)], [Outcome(60.0, 1000)])
    assert account.left == 200 - 5 - 2.5 * 20


def test_the_remaining_rounds_of_the_pinned_configuration_are_kept_back():
    account = Account(SearchPlan((5, 20), (0, 1, 2, 3), budget=400))
    assert account.free == 400 - 20
    account.charge([SearchStep(0, 0, 0, 5), SearchStep(1, 0, 0, 5)], [Outcome(50.0, 100), Outcome(60.0, 300)])
    assert account.free == 400 - 20 - 3 * 5


def test_a_trial_that_diverged_is_charged_the_rounds_that_it_has_trained():
    account = Account(SearchPlan((6, 18), (0, 1), budget=200))
    steps = [SearchStep(trial, 0, 0, 6) for trial in range(3)]
    diverged = (Outcome(0.0, 200, diverged_at=2), Outcome(0.0, 300, diverged_at=1))
    account.charge(steps, [diverged[0], Outcome(60.0, 600), diverged[1]])
    assert [account.rate(trial) for trial in range(3)] == [1, 1, 3]
    assert account.left == 200 - 2 - 6 - 3
    assert account.free == account.left  # the pinned configuration trains no further
    account.charge([SearchStep(0, 0, 6, 18)], [diverged[0]])
    assert (account.rate(1), account.free) == (1, 200 - 2 - 6 - 3)


def test_a_trial_that_failed_is_charged_its_rounds():
    account = Account(SearchPlan((5, 20), (0, 1), budget=200))
    account.charge(
        [SearchStep(0, 0, 0, 5), SearchStep(1, 0, 0, 5)], [Outcome(50.0, 100), Outcome(None, None)]
    )
    assert account.left == 200 - 5 - 5
