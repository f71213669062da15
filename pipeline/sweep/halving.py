"""Successive halving over rounds: rungs, brackets and promotions.

These are the brackets of Hyperband (Li et al., 2018, https://arxiv.org/abs/1603.06560, Algorithm 1), run
synchronously: a rung is decided when all of its trials have ended. What is tried therefore does not depend on
the number of cores, the duration of trials or interruptions.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from itertools import cycle
from typing import Protocol, TypeVar

from pipeline.spec.search_space import PINNED_TRIAL
from pipeline.sweep.budget import REDUCTION, Account, Outcome, Outcomes, SearchStep, Steps

T = TypeVar("T")


class Proposals(Protocol):
    """The source of configurations, which also receives their results."""

    def ask(self, count: int) -> list[int]:
        """The numbers of at most ``count`` new trials; `PINNED_TRIAL` is the pinned configuration."""

    def warm_up(self, trial: int) -> int:
        """Number of initial rounds in which a trial's accuracy is not informative."""

    def tell(self, trial: int, until: int, outcome: Outcome, ended: bool) -> None:
        """Receive the outcome of a trial after a round, and whether it stops there."""


def cost(width: int, rungs: Sequence[int]) -> int:
    """Rounds that a bracket of ``width`` trials takes.

    >>> cost(9, (5, 10, 20))  # 9 up to round 5, 3 up to round 10, 1 up to round 20
    70
    """
    rounds = 0
    for after, until in zip((0, *rungs), rungs, strict=False):
        rounds += width * (until - after)
        width = promoted(width)
    return rounds


def promoted(width: int) -> int:
    """How many of ``width`` trials are promoted to the next rung."""
    return max(1, width // REDUCTION)


def brackets(proposals: Proposals, account: Account) -> Generator[Steps, Outcomes, dict[int, float]]:
    """Run brackets from the first rung, from the second, and so on in turn, as far as the plan allows.

    Returns:
        The values of the trials that reached the last round.
    """
    plan = account.plan
    completed: dict[int, float] = {}
    trials = plan.trials - 1  # besides the pinned configuration
    pinned = 1
    for start in cycle(range(len(plan.rungs))):
        rungs = plan.rungs[start:]
        most = min(trials, REDUCTION ** (len(rungs) - 1))
        free, rate = account.free, account.highest_rate
        width = max(
            (n for n in range(1, int(most) + 1) if cost(n, rungs) * rate <= free + account.tolerance),
            default=0,
        )
        if not width:
            break
        asked = proposals.ask(pinned + width)
        if not asked:
            break
        yield from bracket(proposals, asked, rungs, account, completed)
        trials -= width
        pinned = 0
    return completed


def bracket(
    proposals: Proposals,
    trials: Sequence[int],
    rungs: Sequence[int],
    account: Account,
    completed: dict[int, float],
) -> Generator[Steps, Outcomes, None]:
    """Train all ``trials`` to the first rung, the best of them to the second, and so on.

    A trial is not compared before the end of its warm-up; it continues to the first rung after that. If
    trials turn out more expensive than the pinned configuration, fewer are promoted at the later rungs.

    Args:
        completed: receives the values of the trials that reach the last rung.
    """
    reached = dict.fromkeys(trials, 0)
    for until, following in zip(rungs, (*rungs[1:], None), strict=True):
        compared = [trial for trial in reached if following is None or proposals.warm_up(trial) < until]
        if not compared:
            continue
        steps = [SearchStep(trial, account.plan.seeds[0], reached[trial], until) for trial in compared]
        outcomes = yield steps
        account.charge(steps, outcomes)
        ends = dict(zip(compared, outcomes, strict=True))
        values = {trial: outcome.value for trial, outcome in ends.items()}
        going_on = _going_on(values, until, following, account) if following else set()
        for trial, value in values.items():
            proposals.tell(trial, until, ends[trial], ended=trial not in going_on)
            if trial in going_on:
                reached[trial] = until
            else:
                del reached[trial]
            if following is None and value is not None:
                completed[trial] = value


def _going_on(values: Mapping[int, float | None], until: int, following: int, account: Account) -> set[int]:
    """The pinned configuration, with which the best trial is compared, and the best of the others that the
    budget allows: one up to the last round, and more up to the next rung."""
    ranked = ranking({trial: value for trial, value in values.items() if value is not None})
    most = promoted(len(values.keys() - {PINNED_TRIAL}))
    free = account.free + account.tolerance
    going_on: list[int] = []
    for trial in ranked:
        if trial == PINNED_TRIAL or len(going_on) == most:
            continue
        ahead = (following if going_on else account.plan.rounds) - until  # one of them must reach the end
        if ahead * account.rate(trial) <= free:
            free -= ahead * account.rate(trial)
            going_on.append(trial)
    return {*going_on, *(set(ranked) & {PINNED_TRIAL})}


def driven(
    search: Generator[Steps, Outcomes, T], outcome: Callable[[SearchStep], Outcome]
) -> tuple[list[Steps], T]:
    """All steps of a search whose outcomes are known immediately, batch by batch, and what it returns."""
    batches = []
    try:
        batch = next(search)
        while True:
            batches.append(batch)
            batch = search.send(list(map(outcome, batch)))
    except StopIteration as end:
        return batches, end.value


def ranking(values: Mapping[int, float]) -> list[int]:
    """Trials from the highest value to the lowest; ties keep the order of trials."""
    return sorted(values, key=lambda trial: (-values[trial], trial))
