"""The budget of a search: the rounds at which trials are compared, and the training spent so far."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pipeline.spec.search_space import PINNED_TRIAL

REDUCTION = 3
"""One in this many trials is promoted from a rung to the next."""

RUNGS = 3
"""Largest number of rungs; the first is after a ninth of the rounds."""


class SearchStep(NamedTuple):
    """One simulation, or the next part of one: a trial with a seed from one round to another."""

    trial: int
    seed: int
    after: int
    until: int


class Outcome(NamedTuple):
    """The end of a step.

    Attributes:
        value: accuracy in percent; None if the trial failed.
        samples: number of samples trained on since the trial's first round; None if it failed.
        others: values of the objectives other than accuracy.
        diverged_at: the round in which the trial diverged; it trains no further.
    """

    value: float | None
    samples: int | None
    others: tuple[float, ...] = ()
    diverged_at: int | None = None


Steps = list[SearchStep]
Outcomes = Sequence[Outcome]
"""The outcomes of steps, in the same order."""


@dataclass(frozen=True)
class SearchPlan:
    """The limits of one search.

    Attributes:
        rungs: the rounds after which trials are compared; the last rung is the last round.
        seeds: that of the trials, then those for comparing the best of them with the pinned one.
        budget: budget of the trials, in rounds of the pinned configuration; the comparison is additional.
        trials: largest number of configurations, including the pinned one.
    """

    rungs: tuple[int, ...]
    seeds: tuple[int, ...]
    budget: float = math.inf
    trials: float = math.inf

    @property
    def rounds(self) -> int:
        return self.rungs[-1]


class Account:
    """The training that a search has spent and has left, in rounds of the pinned configuration.

    A round of another trial counts by the samples that it trains on: a trial with twice as many local epochs
    costs twice as much. A trial that stops at a plateau counts as one that has trained all rounds on the
    samples that it needed, so that the budget is a multiple of what the pinned configuration trains on.
    """

    def __init__(self, plan: SearchPlan):
        self.plan = plan
        self._reached: dict[int, tuple[int, int | None]] = {}
        self._reserved = plan.rounds

    @property
    def tolerance(self) -> float:
        """A hundredth of a run, because the rates of equal trials may differ by rounding."""
        return self.plan.rounds / 100

    def charge(self, steps: Steps, outcomes: Outcomes) -> None:
        """Count steps that have ended."""
        for step, outcome in zip(steps, outcomes, strict=True):
            self._reached[step.trial] = outcome.diverged_at or step.until, outcome.samples
            if step.trial == PINNED_TRIAL:
                self._reserved = 0 if outcome.diverged_at else self.plan.rounds - step.until

    def rate(self, trial: int) -> float:
        """Samples of a trial per round, relative to the pinned configuration's; 1 if unknown."""
        own, pinned = (self._reached.get(number, (1, None)) for number in (trial, PINNED_TRIAL))
        if not own[1] or not pinned[1]:
            return 1.0
        return own[1] / own[0] * pinned[0] / pinned[1]

    @property
    def highest_rate(self) -> float:
        """The highest rate of the trials so far; 1 before the first."""
        return max(map(self.rate, self._reached), default=1.0)

    @property
    def left(self) -> float:
        """The budget minus what has been trained."""
        spent = sum(until * self.rate(trial) for trial, (until, _) in self._reached.items())
        return self.plan.budget - spent

    @property
    def free(self) -> float:
        """What is left after the remaining training of the pinned configuration."""
        return self.left - self._reserved


def rungs(rounds: int, every: int, warm_up: int = 0) -> tuple[int, ...]:
    """The rounds after which trials are compared.

    A ninth, a third and all of the rounds after the warm-up, each moved to the next evaluation. A rung in the
    second half of the rounds is left out: stopping a trial there saves less than half of it.

    >>> rungs(20, 5), rungs(200, 10), rungs(200, 10, warm_up=50), rungs(20, 5, warm_up=10)
    ((5, 10, 20), (30, 70, 200), (70, 100, 200), (20,))
    """
    shares = [REDUCTION**place for place in reversed(range(RUNGS))]
    exact = [warm_up + math.ceil((rounds - warm_up) / share) for share in shares]
    moved = dict.fromkeys(min(rounds, math.ceil(at / every) * every) for at in exact)
    return tuple(at for at in moved if at <= rounds / 2 or at == rounds)
