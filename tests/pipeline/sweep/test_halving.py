"""Successive halving: who trains up to which round, and who goes on."""

from __future__ import annotations

import pytest

from pfl.errors import InvalidInput
from pipeline.spec.search import Search
from pipeline.sweep.halving import Plan, Step, bracket, brackets, cost, rungs


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

    def tell(self, trial: int, until: int, value: float | None, ended: bool) -> None:
        if ended:
            self.ended[trial] = until


def run(steps, value) -> tuple[list[list[Step]], object]:
    """All batches of a generator, and what it returns."""
    batches = []
    try:
        batch = next(steps)
        while True:
            batches.append(batch)
            batch = steps.send([value(step.trial) for step in batch])
    except StopIteration as end:
        return batches, end.value


def trials(batches) -> list[list[int]]:
    return [[step.trial for step in batch] for batch in batches]


def test_rungs_lie_at_evaluations_and_after_the_warm_up():
    assert rungs(20, 5) == (5, 10, 20)
    assert rungs(200, 10) == (30, 70, 200)
    assert rungs(20, 5, warm_up=10) == (15, 20)
    assert rungs(20, 5, warm_up=20) == (20,)
    assert rungs(3, 5) == (3,)


def test_the_best_third_goes_on_and_the_pinned_configuration_in_addition():
    proposals = Numbers()
    batches, completed = run(bracket(proposals, range(10), (5, 10, 20), seed=4), proposals.value)
    assert trials(batches) == [list(range(10)), [0, 7, 8, 9], [0, 9]]
    assert completed == {0: 0, 9: 9}
    assert proposals.ended == {**dict.fromkeys(range(1, 7), 5), 7: 10, 8: 10, 0: 20, 9: 20}


def test_a_trial_goes_on_from_the_round_that_it_has_reached():
    batches, _ = run(bracket(Numbers(), range(10), (5, 10, 20), seed=4), float)
    own = [step for batch in batches for step in batch if step.trial == 9]
    assert own == [Step(9, 4, 0, 5), Step(9, 4, 5, 10), Step(9, 4, 10, 20)]


def test_of_equals_the_first_goes_on_and_a_failed_trial_never_does():
    values = {1: None, 2: 7.0, 3: 7.0}
    batches, completed = run(bracket(Numbers(), [1, 2, 3], (5, 20), seed=0), values.get)
    assert trials(batches) == [[1, 2, 3], [2]]
    assert completed == {2: 7.0}
    batches, completed = run(bracket(Numbers(), [1, 2, 3], (5, 20), seed=0), lambda _: None)
    assert (trials(batches), completed) == ([[1, 2, 3]], {})


def test_a_trial_is_not_compared_before_the_end_of_its_warm_up():
    late = Numbers(warm_up=lambda trial: 12 if trial == 1 else 0)
    batches, completed = run(bracket(late, [1, 2, 3, 4], (5, 10, 20), seed=0), lambda trial: trial)
    assert batches[0] == [Step(trial, 0, 0, 5) for trial in (2, 3, 4)]
    assert batches[-1] == [Step(1, 0, 0, 20), Step(4, 0, 10, 20)]
    assert completed == {1: 1, 4: 4}


def test_brackets_begin_at_one_rung_after_another():
    batches, _ = run(brackets(Numbers(), Plan((5, 10, 20), (0, 1), budget=9 * 20)), float)
    assert [(len(batch), batch[0].after, batch[0].until) for batch in batches] == [
        (10, 0, 5),
        (4, 5, 10),
        (2, 10, 20),
        (3, 0, 10),
        (1, 10, 20),
        (1, 0, 20),
        (3, 0, 5),
        (1, 5, 10),
        (1, 10, 20),
    ]


@pytest.mark.parametrize("budget", [40, 59, 60, 100, 150, 300])
def test_no_budget_is_exceeded_and_less_than_a_run_is_left_of_it(budget):
    batches, _ = run(brackets(Numbers(), Plan((5, 10, 20), (0, 1), budget)), float)
    spent = sum(step.until - step.after for batch in batches for step in batch)
    assert budget - 20 < spent <= budget


@pytest.mark.parametrize("number", [2, 5, 14, 20])
def test_as_many_configurations_are_tried_as_asked_for(number):
    proposals = Numbers()
    run(brackets(proposals, Plan((5, 10, 20), (0, 1), trials=number)), float)
    assert proposals.asked == number


def test_the_cost_of_a_bracket_counts_no_round_twice():
    assert cost(9, (5, 10, 20)) == 9 * 5 + 3 * 5 + 10
    assert cost(1, (5, 10, 20)) == 20


def test_a_budget_pays_for_all_seeds_and_for_the_comparison_of_the_finalists():
    plan = Plan.of(Search(budget=4), rounds=20, every=5, warm_up=0, seeds=[0, 1, 2])
    assert plan.budget == 4 * 3 * 20 - 3 * 2 * 20


def test_a_budget_below_one_trial_is_one_line():
    with pytest.raises(InvalidInput, match=r"search\.budget: 2 is not accepted; expected at least 2\.67"):
        Plan.of(Search(budget=2), rounds=20, every=5, warm_up=0, seeds=[0, 1, 2])
    assert Plan.of(Search(budget=2.67), rounds=20, every=5, warm_up=0, seeds=[0, 1, 2])
