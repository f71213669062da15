"""The search in a cell: Optuna's TPE over a method's declared ranges and the learning rate.

Configurations are asked for in batches of a fixed size and told in the order of the trials, so that neither
the number of cores nor a trial's duration nor an interruption changes what is tried. A study is not stored:
asked and told anew with the ledger's values, it is the same study.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pfl.config import Config
from pfl.methods import METHODS
from pfl.rng import integer_seed
from pfl.validation import validated

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution

LEARNING_RATE = (1e-3, 3e-1)
"""The range that every method's learning rate is searched in, on a logarithmic scale."""

WORST = 0.0
"""The value of a trial that diverged: no accuracy is lower, and the sampler learns to stay away."""


def space(config: Config, ranges: Mapping[str, Sequence[float]] | None = None) -> dict[str, BaseDistribution]:
    """What is searched around a pinned configuration; ranges are widened to hold the pinned values.

    A hyperparameter with a condition (`Hyperparameter.when`) is left out unless some trial can meet it.

    Args:
        ranges: of a table, in place of the methods' own.
    """
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    found: dict[str, BaseDistribution] = {}
    low, high = LEARNING_RATE
    found["lr"] = FloatDistribution(min(low, config.lr), max(high, config.lr), log=True)
    method = METHODS[config.method]
    declarations = method.declarations()
    for name, declared in declarations.items():
        pinned = config.hyperparameters[name]
        if declared.search is None:
            continue
        if not declared.active(config.hyperparameters) and declarations[declared.when[0]].search is None:
            continue
        if declared.choices is not None:
            found[name] = CategoricalDistribution(tuple(dict.fromkeys((*declared.search, pinned))))
        else:
            low, high = (ranges or {}).get(name, declared.search)
            if not (declared.log and pinned <= 0):
                low, high = min(low, pinned), max(high, pinned)
            if isinstance(method.__dataclass_fields__[name].default, int):
                found[name] = IntDistribution(int(low), int(high), log=declared.log)
            else:
                found[name] = FloatDistribution(low, high, log=declared.log)
    return found


def configured(pinned: Config, params: Mapping[str, Any]) -> Config:
    """The pinned configuration with the values of one search trial."""
    rest = {name: value for name, value in params.items() if name != "lr"}
    return validated(
        dataclasses.replace(pinned, lr=params["lr"], hyperparameters={**pinned.hyperparameters, **rest})
    )


class Study:
    """The search around one pinned configuration, which is trial 0.

    Args:
        pinned: validated.
        trials: how many, the pinned one included.
        batch: how many are asked for together.
        seed: of the sampler, with the method's name.
        ranges: as in `space`.

    Attributes:
        asked: the parameters of every trial so far.
        values: what was told of them, None for one that failed.
    """

    def __init__(
        self,
        pinned: Config,
        trials: int,
        batch: int,
        seed: int,
        ranges: Mapping[str, Sequence[float]] | None = None,
    ):
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.trials = trials
        self.asked: list[dict[str, Any]] = []
        self.values: list[float | None] = []
        self._batch = batch
        self._space = space(pinned, ranges)
        sampler = optuna.samplers.TPESampler(
            seed=integer_seed(seed, f"search {pinned.method}") % 2**32,
            n_startup_trials=max(1, trials // 3),
            multivariate=True,
            constant_liar=True,
        )
        self._study = optuna.create_study(direction="maximize", sampler=sampler)
        self._first = {"lr": pinned.lr, **pinned.hyperparameters}
        declared = METHODS[pinned.method].declarations()
        self._conditional = {
            name: declaration
            for name, declaration in declared.items()
            if name in self._space and declaration.when and declaration.when[0] in self._space
        }
        self._open: list[optuna.Trial | None] = []

    @property
    def complete(self) -> bool:
        return len(self.values) == self.trials

    def ask(self) -> list[dict[str, Any]]:
        """The parameters of the next batch, which is to be told before another is asked for."""
        size = min(self._batch, self.trials - len(self.asked))
        fresh = [self._ask_one(len(self.asked) + place) for place in range(size)]
        self.asked += fresh
        return fresh

    def _ask_one(self, number: int) -> dict[str, Any]:
        if number == 0:
            pinned = {name: self._first[name] for name in self._space if self._active(name, {})}
            if any(value <= 0 for name, value in pinned.items() if getattr(self._space[name], "log", False)):
                self._open.append(None)  # a logarithmic scale cannot hold it: the sampler is not told
                return pinned
            self._study.enqueue_trial(pinned)
        trial = self._study.ask(
            {name: range for name, range in self._space.items() if name not in self._conditional}
        )
        for name in self._conditional:
            if self._active(name, trial.params):
                _suggest(trial, name, self._space[name])
        self._open.append(trial)
        return trial.params

    def _active(self, name: str, params: Mapping[str, Any]) -> bool:
        """Whether a trial with ``params``, and else with the pinned values, is asked for ``name``."""
        declared = self._conditional.get(name)
        return declared is None or declared.active({**self._first, **params})

    def tell(self, values: Sequence[float | None]) -> None:
        """The objectives of the open batch, in its order: higher is better, None for a trial that failed."""
        from optuna.trial import TrialState

        for trial, value in zip(self._open, values, strict=True):
            if trial is not None:
                state = TrialState.FAIL if value is None else TrialState.COMPLETE
                self._study.tell(trial, value, state=state)
        self._open = []
        self.values += values

    def best(self) -> int | None:
        """The trial with the highest value, the first of equals; None where all failed."""
        told = [number for number, value in enumerate(self.values) if value is not None]
        return max(told, key=lambda number: (self.values[number], -number), default=None)


def _suggest(trial: optuna.Trial, name: str, distribution: BaseDistribution) -> None:
    """Ask for one more parameter of an open trial."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    match distribution:
        case CategoricalDistribution():
            trial.suggest_categorical(name, distribution.choices)
        case IntDistribution():
            trial.suggest_int(name, distribution.low, distribution.high, log=distribution.log)
        case FloatDistribution():
            trial.suggest_float(name, distribution.low, distribution.high, log=distribution.log)
