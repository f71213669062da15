"""Searches replayed on pools of learning curves: ours, and Optuna's TPE, GP, Hyperband and random search.

A proposal gets the curve of the nearest configuration that its search has not tried yet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import optuna

from benchmarks.search.pools import SEARCH, SEEDS, CurvePool
from pipeline.algorithms._starts import place_of
from pipeline.spec.search_space import PINNED_TRIAL, with_params
from pipeline.sweep.budget import REDUCTION, Account, Outcome, SearchPlan
from pipeline.sweep.halving import brackets, driven
from pipeline.sweep.search import Proposer, plan_of, warm_up_of

BUDGET = 18
"""Budget of a search, in runs of the pinned configuration, counted in training samples."""
COSTS = np.arange(1.0, BUDGET + 1)
INACTIVE = 0.5
"""Position of an inactive conditional parameter, for distances between configurations."""


class Replay:
    """A search on one pool: what it has spent, and the best configuration that it knows.

    The incumbent is at first the pinned configuration; another one replaces it if it has a higher accuracy
    after the last round, with the seed of this replay.

    Args:
        number: number of the replay, which determines the seeds.

    Attributes:
        seed: seed of the sampler.
        tried: the configuration of every trial, the pinned one (0) first.
    """

    def __init__(self, pool: CurvePool, number: int):
        self.pool, self.seed = pool, number
        self.tried: list[int] = []
        self._place = number % len(SEEDS)
        self._best = float(pool.accuracy[0, self._place, -1])
        self._progress = [(0.0, float(pool.final[0]))]
        self._spent = 0.0
        self._positions = np.array([self._position(params) for params in pool.configurations])

    @property
    def is_over(self) -> bool:
        return self._spent >= BUDGET or len(self.tried) == len(self.pool.configurations)

    def choose(self, params: Mapping[str, Any]) -> int:
        """The number of a new trial with ``params``, or with the nearest ones that are left in the pool."""
        away = np.abs(self._positions - self._position(params)).sum(axis=1)
        away[self.tried] = np.inf
        self.tried.append(int(away.argmin()) if self.tried else PINNED_TRIAL)
        return len(self.tried) - 1

    def train(self, trial: int, after: int, until: int) -> Outcome:
        """The outcome of a trial that is trained from one round to another."""
        configuration, rounds = self.tried[trial], self.pool.rounds
        samples, pinned = self.pool.samples[[configuration, PINNED_TRIAL], self._place].tolist()
        self._spent += samples / pinned * (until - after) / rounds[-1]
        value = float(self.pool.accuracy[configuration, self._place, rounds.index(until)])
        if until == rounds[-1] and value > self._best:
            self._best = value
            self._progress.append((self._spent, float(self.pool.final[configuration])))
        return Outcome(value, round(samples * until / rounds[-1]))

    @property
    def regrets(self) -> np.ndarray:
        """For each of `COSTS`, points between the incumbent and the best of the pool, as means over seeds."""
        known = [[final for spent, final in self._progress if spent <= cost + 1e-9][-1] for cost in COSTS]
        return float(self.pool.final.max()) - np.array(known)

    def _position(self, params: Mapping[str, Any]) -> list[float]:
        active = self.pool.active(params)
        return [
            place_of(domain, active[name]) if name in active else INACTIVE
            for name, domain in self.pool.space.items()
        ]


class ReplayedProposals:
    """Our proposals, with the configurations of the pool."""

    def __init__(self, replay: Replay):
        self._replay = replay
        self.proposer = Proposer(replay.pool.pinned, SEARCH.model_copy(update={"seed": replay.seed}))

    def ask(self, count: int) -> list[int]:
        left = len(self._replay.pool.configurations) - len(self._replay.tried)
        trials = self.proposer.ask(min(count, left))
        return [self._replay.choose(self.proposer.asked[trial]) for trial in trials]

    def warm_up(self, trial: int) -> int:
        params = self._replay.pool.configurations[self._replay.tried[trial]]
        return warm_up_of(with_params(self._replay.pool.pinned, params))

    def tell(self, trial: int, until: int, outcome: Outcome, ended: bool) -> None:
        self.proposer.tell(trial, until, outcome, ended)


def complete(replay: Replay, proposals: ReplayedProposals, plan: SearchPlan) -> dict[int, float]:
    """Replay our search to its end; return the values of the trials that reached the last round."""
    _, values = driven(
        brackets(proposals, Account(plan)), lambda step: replay.train(step.trial, step.after, step.until)
    )
    return values


def ours(pool: CurvePool, number: int) -> np.ndarray:
    """The `Replay.regrets` of the pipeline's search without its final comparison."""
    replay = Replay(pool, number)
    plan = plan_of(pool.pinned, SEARCH, SEEDS)
    complete(replay, ReplayedProposals(replay), SearchPlan(plan.rungs, (0,), BUDGET * plan.rounds))
    return replay.regrets


def optuna_search(
    sampler: Callable[[int], optuna.samplers.BaseSampler], *, hyperband: bool = False
) -> Callable[[CurvePool, int], np.ndarray]:
    """An Optuna sampler with its defaults, one trial after another; the pinned configuration is the first.

    Args:
        hyperband: stop trials by Optuna's Hyperband at any evaluation; by default, all run to the end.
    """

    def search(pool: CurvePool, number: int) -> np.ndarray:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        replay, last = Replay(pool, number), pool.rounds[-1]
        pruner = optuna.pruners.HyperbandPruner(pool.rounds[0], last, REDUCTION) if hyperband else None
        study = optuna.create_study(
            direction="maximize",
            sampler=sampler(number),
            pruner=pruner or optuna.pruners.NopPruner(),
            study_name=f"replay {number}",  # which Hyperband's brackets depend on
        )
        pinned = pool.configurations[0]
        study.enqueue_trial({name: value for name, value in pinned.items() if holds(pool.space[name], value)})
        while not replay.is_over:
            proposal = study.ask(pool.space)
            trial, after, state = replay.choose(proposal.params), 0, optuna.trial.TrialState.COMPLETE
            value = -math.inf
            for until in pool.rounds:
                value = replay.train(trial, after, until).value or 0.0
                after = until
                proposal.report(value, until)
                if proposal.should_prune():
                    state = optuna.trial.TrialState.PRUNED
                    break
            study.tell(proposal, value if state == optuna.trial.TrialState.COMPLETE else None, state=state)
        return replay.regrets

    return search


def holds(domain: Any, value: Any) -> bool:
    """Whether a distribution contains a value; a pinned one may be outside."""
    if isinstance(domain, optuna.distributions.CategoricalDistribution):
        return value in domain.choices
    return bool(domain.low <= value <= domain.high)


SEARCHES: dict[str, Callable[[CurvePool, int], np.ndarray]] = {
    "ours": ours,
    "TPE": optuna_search(lambda seed: optuna.samplers.TPESampler(seed=seed)),
    "GP": optuna_search(lambda seed: optuna.samplers.GPSampler(seed=seed)),
    "Hyperband": optuna_search(lambda seed: optuna.samplers.TPESampler(seed=seed), hyperband=True),
    "random": optuna_search(lambda seed: optuna.samplers.RandomSampler(seed=seed)),
}
