"""Successive halving in rounds: which configurations train up to which round, and which of them go on.

These are the brackets of Hyperband (Li et al., 2018, https://arxiv.org/abs/1603.06560, Algorithm 1), run
synchronously: a rung is decided when all of its trials have ended, so that neither the number of cores nor
the duration of a trial nor an interruption changes what is tried.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import NamedTuple, Protocol

from pfl.errors import InvalidInput
from pipeline.spec.search import FINALISTS, Search

REDUCTION = 3
"""One of so many trials goes on from a rung to the next."""

RUNGS = 3
"""At most; the first is after a ninth of the rounds."""

PINNED = 0
"""The number of the pinned configuration, which always goes on: the finalists are compared with it."""


class Step(NamedTuple):
    """One simulation, or the next part of one: a trial with a seed from one round to another."""

    trial: int
    seed: int
    after: int
    until: int


Steps = list[Step]
Values = Sequence[float | None]
"""In percent of the steps in their order: higher is better, None for one that failed."""


class Proposals(Protocol):
    """Where the configurations come from, and who is told of them."""

    def ask(self, count: int) -> list[int]:
        """The numbers of new trials; trial 0 is the pinned configuration."""

    def warm_up(self, trial: int) -> int:
        """The rounds of a trial whose accuracy says nothing."""

    def tell(self, trial: int, until: int, value: float | None, ended: bool) -> None:
        """The accuracy of a trial after a round, and whether it stops there."""


@dataclass(frozen=True)
class Plan:
    """The limits of one search.

    Attributes:
        rungs: the rounds after which trials are compared; the last one is the last of all.
        seeds: trials run with the first; finalists with all.
        budget: of all trials with the first seed, in rounds.
        trials: most configurations, the pinned one included.
    """

    rungs: tuple[int, ...]
    seeds: tuple[int, ...]
    budget: float = math.inf
    trials: float = math.inf

    @property
    def rounds(self) -> int:
        return self.rungs[-1]

    @classmethod
    def of(cls, search: Search, rounds: int, every: int, warm_up: int, seeds: Sequence[int]) -> Plan:
        """The plan of a table's ``search`` in one cell.

        Args:
            every: rounds between evaluations.
            warm_up: of the pinned configuration.

        Raises:
            InvalidInput: the budget does not pay for a single trial beside the pinned configuration.
        """
        found = rungs(rounds, every, warm_up)
        if search.trials is not None:
            return cls(found, tuple(seeds), trials=search.trials)
        assert search.budget is not None
        comparison = (FINALISTS + 1) * (len(seeds) - 1) * rounds
        budget = search.budget * len(seeds) * rounds - comparison
        least = (comparison + 2 * rounds) / (len(seeds) * rounds)
        if budget < 2 * rounds:
            accepted = f"at least {math.ceil(100 * least) / 100:g}: one trial and the comparison of finalists"
            raise InvalidInput("search.budget", f"{search.budget:g}", accepted)
        return cls(found, tuple(seeds), budget)


def rungs(rounds: int, every: int, warm_up: int = 0) -> tuple[int, ...]:
    """The rounds after which trials are compared.

    A ninth, a third and all of the rounds after the warm-up, each moved to the next evaluation.

    >>> rungs(20, 5), rungs(200, 10), rungs(20, 5, warm_up=10), rungs(2, 5)
    ((5, 10, 20), (30, 70, 200), (15, 20), (2,))
    """
    shares = [REDUCTION**place for place in reversed(range(RUNGS))]
    found = [warm_up + math.ceil((rounds - warm_up) / share) for share in shares]
    return tuple(dict.fromkeys(min(rounds, math.ceil(at / every) * every) for at in found))


def cost(width: int, rungs: Sequence[int]) -> int:
    """Rounds that a bracket of so many trials takes.

    >>> cost(9, (5, 10, 20))  # 9 up to round 5, 3 up to round 10, 1 up to round 20
    70
    """
    found = 0
    for after, until in zip((0, *rungs), rungs, strict=False):
        found += width * (until - after)
        width = promoted(width)
    return found


def promoted(width: int) -> int:
    """How many of so many trials go on to the next rung."""
    return max(1, width // REDUCTION)


def brackets(proposals: Proposals, plan: Plan) -> Generator[Steps, Values, dict[int, float]]:
    """Brackets one after another, from the first rung, from the second, and so on, as far as the plan allows.

    Returns:
        The values of the trials that reached the last round.
    """
    completed: dict[int, float] = {}
    budget, trials = plan.budget - plan.rounds, plan.trials - 1  # besides the pinned configuration
    pinned = 1
    for start in cycle(range(len(plan.rungs))):
        rungs = plan.rungs[start:]
        most = min(trials, REDUCTION ** (len(rungs) - 1))
        width = max((n for n in range(1, int(most) + 1) if cost(n, rungs) <= budget), default=0)
        if not width:
            break
        completed |= yield from bracket(proposals, proposals.ask(pinned + width), rungs, plan.seeds[0])
        budget -= cost(width, rungs)
        trials -= width
        pinned = 0
    return completed


def bracket(
    proposals: Proposals, trials: Sequence[int], rungs: Sequence[int], seed: int
) -> Generator[Steps, Values, dict[int, float]]:
    """Train all ``trials`` to the first rung, the best of them to the second, and so on.

    A trial is not compared before the end of its warm-up: it goes on to the first rung after that.

    Returns:
        The values of the trials that reached the last rung.
    """
    reached = dict.fromkeys(trials, 0)
    completed: dict[int, float] = {}
    for until in rungs:
        last = until == rungs[-1]
        compared = [trial for trial in reached if last or proposals.warm_up(trial) < until]
        if not compared:
            continue
        told = yield [Step(trial, seed, reached[trial], until) for trial in compared]
        values = dict(zip(compared, told, strict=True))
        ranked = ranking({trial: value for trial, value in values.items() if value is not None})
        others = [trial for trial in ranked if trial != PINNED]
        best = {PINNED, *others[: promoted(len(set(compared) - {PINNED}))]}
        for trial, value in values.items():
            goes_on = not last and value is not None and trial in best
            proposals.tell(trial, until, value, ended=not goes_on)
            if goes_on:
                reached[trial] = until
            else:
                del reached[trial]
            if last and value is not None:
                completed[trial] = value
    return completed


def ranking(values: dict[int, float]) -> list[int]:
    """Trials from the highest value to the lowest, the first of equals first."""
    return sorted(values, key=lambda trial: (-values[trial], trial))
