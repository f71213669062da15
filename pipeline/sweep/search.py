"""The search in a cell: proposals of an algorithm, successive halving, and a comparison with the pinned one.

Configurations are proposed and reported in the order of the trials, one rung at a time. A search is not
stored, because restarting it with the values in the ledger gives the same search.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pfl.core.config import Config
from pfl.core.errors import InvalidInput
from pfl.core.rng import integer_seed
from pfl.methods import METHODS
from pipeline.algorithms import ALGORITHMS, Distribution
from pipeline.spec.imported_trials import PriorTrial
from pipeline.spec.objectives import goals
from pipeline.spec.search_space import (
    PINNED_TRIAL,
    Search,
    distribution,
    pinned_value,
    search_seeds,
    searched,
    with_params,
)
from pipeline.store.results import Comparison, Selection
from pipeline.store.scores import gain
from pipeline.sweep.budget import Account, Outcome, Outcomes, SearchPlan, SearchStep, Steps, rungs
from pipeline.sweep.halving import Proposals, brackets, driven, ranking

if TYPE_CHECKING:
    import optuna

WORST = 0.0
"""The value of a trial that diverged: no accuracy is lower, so the sampler learns to avoid it."""

FALSE_SELECTIONS = 0.05
"""Largest probability of selecting a trial that is no better than the pinned configuration."""


def search(proposals: Proposals, plan: SearchPlan) -> Generator[Steps, Outcomes, Selection]:
    """The whole search: yields the next steps to run, and receives their outcomes."""
    completed = yield from brackets(proposals, Account(plan))
    challenger = ranking(completed)[0] if PINNED_TRIAL in completed else PINNED_TRIAL
    if challenger == PINNED_TRIAL:
        return Selection(PINNED_TRIAL, ())
    compared = (PINNED_TRIAL, challenger)
    seeds = plan.seeds[1:]
    outcomes = yield [SearchStep(trial, seed, 0, plan.rounds) for trial in compared for seed in seeds]
    values = [outcome.value for outcome in outcomes]
    return selected(challenger, values[: len(seeds)], values[len(seeds) :])


def selected(challenger: int, pinned: Sequence[float | None], values: Sequence[float | None]) -> Selection:
    """The challenger if it is better than the pinned configuration by a one-sided paired t-test over seeds.

    Seeds are the unit, because a seed's accuracies are already means over the same clients. They must not
    include the seed by which the challenger was chosen, so that one test bounds the probability of a false
    selection, regardless of the number of trials. The differences are assumed to be normal; the variances of
    the configurations, and the effects of seeds on both, may differ.

    Args:
        challenger: number of its trial.
        pinned, values: accuracies of the pinned configuration and of the challenger, by seed; None for a
            failed one, in which case the pinned configuration is kept.
    """
    from scipy.special import stdtrit

    pairs = list(zip(values, pinned, strict=True))
    differences = [value - base for value, base in pairs if value is not None and base is not None]
    if len(differences) < len(pairs):
        return Selection(PINNED_TRIAL, ())
    mean, error = gain(differences)
    assert error is not None
    better = mean > stdtrit(len(differences) - 1, 1 - FALSE_SELECTIONS) * error
    return Selection(challenger if better else PINNED_TRIAL, (Comparison(challenger, mean, error),))


def plan_of(pinned: Config, search: Search, seeds: Sequence[int]) -> SearchPlan:
    """The plan of a search around a pinned configuration, in a table with ``seeds``.

    Raises:
        InvalidInput: the budget does not cover a single trial besides the pinned configuration.
    """
    halving = search.halving and not search.has_several_objectives
    compared_at = rungs(pinned.rounds, pinned.eval_every, warm_up_of(pinned)) if halving else (pinned.rounds,)
    if search.trials is not None:
        return SearchPlan(compared_at, search_seeds(seeds), trials=search.trials)
    assert search.budget is not None
    if search.budget * len(seeds) < 2:
        least = math.ceil(100 * 2 / len(seeds)) / 100
        accepted = f"at least {least:g}: the pinned configuration and one trial"
        raise InvalidInput("search.budget", f"{search.budget:g}", accepted)
    return SearchPlan(compared_at, search_seeds(seeds), search.budget * len(seeds) * pinned.rounds)


def warm_up_of(config: Config) -> int:
    """Number of initial rounds in which the accuracy is not informative."""
    return METHODS[config.method].from_dict(config.hyperparameters).warm_up(config.rounds)


class Counted:
    """Proposals that are only counted, to estimate the steps of a plan."""

    def __init__(self) -> None:
        self._asked = 0

    def ask(self, count: int) -> list[int]:
        self._asked += count
        return list(range(self._asked - count, self._asked))

    def warm_up(self, trial: int) -> int:
        return 0

    def tell(self, trial: int, until: int, outcome: Outcome, ended: bool) -> None:
        pass


def planned(plan: SearchPlan) -> Steps:
    """The steps of a search if no trial fails, costs more or warms up longer than the pinned one, and one of
    them is better, so that there is a comparison."""
    batches, _ = driven(search(Counted(), plan), lambda step: Outcome(float(step.trial), None))
    return [step for batch in batches for step in batch]


def on_validation(config: Config, share: float) -> Config:
    """``config`` with a share of the training samples held out, and minibatches smaller by the same factor.

    A local epoch then has as many steps as in the final training, without a last minibatch of a few samples.
    Other metrics are dropped: a search reads only accuracies, and its runs should not depend on them.
    """
    batch_size = math.ceil(config.batch_size * (1 - share))
    return dataclasses.replace(config, validation=share, batch_size=batch_size, metrics=())


class Proposer:
    """Proposes configurations by an Optuna study; trial 0 is the pinned one.

    Args:
        pinned: the validated pinned configuration.
        search: from the table; its seed and the method's name seed the sampler.
        prior: trials of other searches. The first trials start from the best of them, and the sampler learns
            from them once the pinned configuration has its final accuracy, on which their gains are based.

    Attributes:
        asked: the parameters of every trial so far.
        algorithm: proposes all trials but the pinned configuration.
    """

    def __init__(self, pinned: Config, search: Search, prior: Sequence[PriorTrial] = ()):
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.asked: list[dict[str, Any]] = []
        self._pinned = pinned
        declared = searched(pinned, search)
        self._space = {name: distribution(pinned.method, name, domain) for name, domain in declared.items()}
        self._pinned_values = {name: pinned_value(pinned, name) for name in self._space}
        self._conditional = {
            name: domain for name, domain in declared.items() if domain.when and domain.when[0] in self._space
        }
        # Do not repeat the proposals of the search that the trials come from.
        imported = f" after {len(prior)} imported" if prior else ""
        seed = integer_seed(search.seed, f"search {pinned.method}{imported}") % 2**32
        self.algorithm = ALGORITHMS[search.algorithm](self._space, seed)
        self._prior = prior
        best = max(prior, key=lambda trial: trial.gain, default=None)
        # Round, accuracy and parameters of the best trial so far.
        params = best.params if best and best.gain > 0 else {}
        self._best: tuple[int, float, Mapping[str, Any]] = (0, -math.inf, params)
        self._storage = optuna.storages.InMemoryStorage()
        self._study = optuna.create_study(
            directions=goals(search.objectives), sampler=self.algorithm.sampler(), storage=self._storage
        )
        self._ended = False
        # Samplers call it after their last combination; Optuna's works only inside `Study.optimize`.
        self._study.stop = self._end  # type: ignore[method-assign]
        self._trials: list[optuna.Trial | None] = []

    def ask(self, count: int) -> list[int]:
        """The numbers of at most ``count`` new trials, whose parameters are then in `asked`."""
        first = len(self.asked)
        last = first if self._ended else int(min(first + count, 1 + self.algorithm.size))
        new = range(first, last)
        for number in new:
            self.asked.append(self._ask_one(number))
        return list(new)

    def _end(self) -> None:
        self._ended = True

    def config(self, trial: int) -> Config:
        """The configuration of a trial."""
        return with_params(self._pinned, self.asked[trial])

    def warm_up(self, trial: int) -> int:
        return warm_up_of(self.config(trial))

    def tell(self, trial: int, until: int, outcome: Outcome, ended: bool) -> None:
        """Report the outcome after a round. A trial that stops before the last one counts as pruned."""
        from optuna.trial import TrialState

        value = outcome.value
        if value is not None:
            self._best = max(self._best, (until, value, self.asked[trial]), key=lambda best: best[:2])
            if trial == PINNED_TRIAL and until == self._pinned.rounds:
                self._add_prior(value)
        open_trial = self._trials[trial]
        if open_trial is None:
            return
        if value is None:
            self._study.tell(open_trial, state=TrialState.FAIL)
            return
        if len(self._study.directions) == 1:  # Optuna has no intermediate values for several objectives
            open_trial.report(value, step=until)
        if ended and until == self._pinned.rounds:
            self._study.tell(open_trial, [value, *outcome.others])
        elif ended:
            self._study.tell(open_trial, state=TrialState.PRUNED)

    def save(self, url: str, name: str) -> None:
        """Copy the study into an Optuna storage, replacing one of the same name."""
        import optuna

        with suppress(KeyError):
            optuna.delete_study(study_name=name, storage=url)
        optuna.copy_study(
            from_study_name=self._study.study_name,
            from_storage=self._storage,
            to_storage=url,
            to_study_name=name,
        )

    def _ask_one(self, number: int) -> dict[str, Any]:
        if number == PINNED_TRIAL:
            pinned = {name: value for name, value in self._pinned_values.items() if self._active(name, {})}
            if any(value <= 0 for name, value in pinned.items() if getattr(self._space[name], "log", False)):
                self._trials.append(None)  # not on a logarithmic scale: the sampler does not learn of it
                return pinned
            self._study.enqueue_trial(pinned)
        elif start := self.algorithm.start(number, {**self._pinned_values, **self._best[-1]}):
            self._study.enqueue_trial(start)
        trial = self._study.ask(
            {name: range for name, range in self._space.items() if name not in self._conditional}
        )
        for name in self._conditional:
            if self._active(name, trial.params):
                _suggest(trial, name, self._space[name])
        self._trials.append(trial)
        return trial.params

    def _add_prior(self, pinned: float) -> None:
        """Add the imported trials as observations, given the accuracy of the pinned configuration."""
        import optuna

        for trial in self._prior:
            value = pinned + trial.gain
            distributions = {name: self._space[name] for name in trial.params}
            self._study.add_trial(
                optuna.trial.create_trial(
                    params=dict(trial.params),
                    distributions=distributions,
                    value=value,
                    user_attrs={"source": trial.source},
                )
            )
            self._best = max(
                self._best, (self._pinned.rounds, value, trial.params), key=lambda best: best[:2]
            )

    def _active(self, name: str, params: Mapping[str, Any]) -> bool:
        """Whether ``name`` is searched in a trial with ``params``, and the pinned values for the rest."""
        declared = self._conditional.get(name)
        return declared is None or declared.active({**self._pinned.hyperparameters, **params})


def _suggest(trial: optuna.Trial, name: str, distribution: Distribution) -> None:
    """Ask for one more parameter of an open trial."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    match distribution:
        case CategoricalDistribution():
            trial.suggest_categorical(name, distribution.choices)
        case IntDistribution():
            trial.suggest_int(name, distribution.low, distribution.high, log=distribution.log)
        case FloatDistribution():
            trial.suggest_float(name, distribution.low, distribution.high, log=distribution.log)
