"""Successive halving: who trains up to which round, and who goes on."""

from __future__ import annotations

import pytest

from pipeline.sweep.budget import Account, Outcome, SearchPlan, SearchStep
from pipeline.sweep.halving import bracket, brackets, driven


class Numbers:
    """Proposals whose accuracy is ``value(trial)`` at every rung."""

    def __init__(self, value=lambda trial: trial, warm_up=lambda _: 0):
        self.value = value
        self.warm_up = warm_up
        self.asked = 0
        self.ended: dict[int, int] = {}

    def ask(self, count: int) -> list[int]:
        self.asked += count
        return list(range(self.asked - count, self.asked))

    def outcome(self, step: SearchStep) -> Outcome:
        return Outcome(self.value(step.trial), step.until)

    def tell(self, trial: int, until: int, outcome: Outcome, ended: bool) -> None:
        if ended:
            self.ended[trial] = until


def run_bracket(proposals, trials, rungs) -> tuple[list[list[SearchStep]], dict[int, float]]:
    """All batches of one bracket, and the values of the trials that it has trained to the end."""
    completed: dict[int, float] = {}
    account = Account(SearchPlan(tuple(rungs), (4, 5)))
    batches, _ = driven(bracket(proposals, trials, rungs, account, completed), proposals.outcome)
    return batches, completed


def run_brackets(plan: SearchPlan) -> tuple[list[list[SearchStep]], Numbers]:
    """All batches of a search's brackets, and where its trials came from."""
    proposals = Numbers()
    batches, _ = driven(brackets(proposals, Account(plan)), proposals.outcome)
    return batches, proposals


def trials(batches) -> list[list[int]]:
    return [[step.trial for step in batch] for batch in batches]


def test_the_best_third_goes_on_and_the_pinned_configuration_in_addition():
    proposals = Numbers()
    batches, completed = run_bracket(proposals, range(10), (5, 10, 20))
    assert trials(batches) == [list(range(10)), [0, 7, 8, 9], [0, 9]]
    assert completed == {0: 0, 9: 9}
    assert proposals.ended == {**dict.fromkeys(range(1, 7), 5), 7: 10, 8: 10, 0: 20, 9: 20}


def test_a_trial_goes_on_from_the_round_that_it_has_reached():
    batches, _ = run_bracket(Numbers(), range(10), (5, 10, 20))
    own = [step for batch in batches for step in batch if step.trial == 9]
    assert own == [SearchStep(9, 4, 0, 5), SearchStep(9, 4, 5, 10), SearchStep(9, 4, 10, 20)]


def test_of_equals_the_first_goes_on_and_a_failed_trial_never_does():
    values = {1: None, 2: 7.0, 3: 7.0}
    batches, completed = run_bracket(Numbers(values.get), [1, 2, 3], (5, 20))
    assert trials(batches) == [[1, 2, 3], [2]]
    assert completed == {2: 7.0}
    batches, completed = run_bracket(Numbers(lambda _: None), [1, 2, 3], (5, 20))
    assert (trials(batches), completed) == ([[1, 2, 3]], {})


def test_a_trial_is_not_compared_before_the_end_of_its_warm_up():
    late = Numbers(warm_up=lambda trial: 12 if trial == 1 else 0)
    batches, completed = run_bracket(late, [1, 2, 3, 4], (5, 10, 20))
    assert batches[0] == [SearchStep(trial, 4, 0, 5) for trial in (2, 3, 4)]
    assert batches[-1] == [SearchStep(1, 4, 0, 20), SearchStep(4, 4, 10, 20)]
    assert completed == {1: 1, 4: 4}


def test_brackets_begin_at_one_rung_after_another():
    batches, _ = run_brackets(SearchPlan((5, 10, 20), (0, 1), budget=12 * 20))
    assert [(len(batch), batch[0].after, batch[0].until) for batch in batches] == [
        (10, 0, 5),
        (4, 5, 10),
        (2, 10, 20),
        (3, 0, 10),
        (1, 10, 20),
        (1, 0, 20),
        (9, 0, 5),
        (3, 5, 10),
        (1, 10, 20),
        (1, 0, 10),
        (1, 10, 20),
    ]


@pytest.mark.parametrize("budget", [100, 119, 120, 160, 210, 360])
def test_no_budget_is_exceeded_and_less_than_a_run_is_left_of_it(budget):
    batches, _ = run_brackets(SearchPlan((5, 10, 20), (0, 1), budget))
    spent = sum(step.until - step.after for batch in batches for step in batch)
    assert budget - 20 < spent <= budget


@pytest.mark.parametrize("number", [2, 5, 14, 20])
def test_as_many_configurations_are_tried_as_asked_for(number):
    _, proposals = run_brackets(SearchPlan((5, 10, 20), (0, 1), trials=number))
    assert proposals.asked == number
