"""The content of `search:`, and the parameters of a configuration that are searched, with their ranges."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from itertools import count, islice
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, field_validator, model_validator

from pfl.core.config import Config
from pfl.core.errors import InvalidInput, unknown_name
from pfl.core.hyper import Hyperparameter
from pfl.methods import METHODS
from pfl.run.validation import validated
from pipeline.algorithms import ALGORITHMS, Distribution
from pipeline.spec.objectives import ACCURACY, check_objectives
from pipeline.spec.yaml import Strict

PINNED = "pinned"
"""Replaces the range of a parameter that is not searched."""

PINNED_TRIAL = 0
"""Trial number of the pinned configuration in a search."""

OTHERS = "others"
"""Key that stands for all parameters that the space does not name."""

COMPARED = 3
"""Minimum number of seeds for comparing a search's best configuration with the pinned one."""

FIRST_SEED = 1000
"""The seeds of searches start here."""

TRAINING = {
    "lr": Hyperparameter("learning rate", low=0.0, search=(1e-3, 3e-1), log=True),
    "momentum": Hyperparameter("momentum", low=0.0, high=0.999),
    "weight_decay": Hyperparameter("weight decay", low=0.0, log=True),
    "epochs": Hyperparameter("local epochs", low=1),
    "batch_size": Hyperparameter("images per minibatch", low=1, log=True),
}
"""Training options that can be searched for every method; by default, only ``lr`` is."""

Range = list[float] | list[str] | Literal["pinned"]


def _range(value: Any) -> Any:
    """Return ``value`` if it is a valid range for some parameter."""
    kinds = {type(choice) for choice in value} if isinstance(value, list) else set()
    if value == PINNED or kinds == {str} or (kinds and kinds <= {int, float}):
        return value
    accepted = "two numbers [lowest, highest]; a list of choices, for a parameter that has them; or pinned"
    raise InvalidInput("a range", value, accepted)


class Search(Strict):
    """A hyperparameter search in each cell. It has either a budget or a number of trials."""

    budget: float | None = Field(default=None, gt=0, le=300)
    """What the trials of a search may train in each cell, in runs of the pinned configuration with all seeds,
    counted in training samples. Trials that stop early count by what they have trained. The comparison of the
    best trial with the pinned configuration is additional."""
    trials: int | None = Field(default=None, ge=2, le=1000)
    """Number of configurations per cell, including the pinned one."""
    space: dict[str, Annotated[Any, PlainValidator(_range, json_schema_input_type=Range)]] = Field(default={})
    """By parameter: `[lowest, highest]`, a list of choices, or `pinned`. A parameter is a hyperparameter of a
    row's method or one of lr, momentum, weight_decay, epochs and batch_size. A hyperparameter that is omitted
    here has the range that its method declares; an omitted lr has 0.001 to 0.3, and the other four are
    pinned. `others: pinned` pins all omitted parameters.
    """
    validation: float = Field(default=0.2, gt=0, lt=1)
    """Share of each client's training samples that the search evaluates on."""
    algorithm: str = "tpe"
    """The algorithm that proposes configurations: `tpe`, `gp`, `nsga2`, `cmaes`, `qmc`, `random`, `grid` or
    that of a plugin.
    """
    objectives: list[str] = [ACCURACY]
    """What is optimised: `accuracy`, and after it any of `megabytes`, `megabytes_per_round`, `decile`
    (accuracy of the worst tenth of the clients), `deviation` (over the clients) and columns of plugins; see
    [Several objectives](search.md#several-objectives).
    """
    halving: bool = True
    """Stop the worse trials after a ninth and a third of the rounds; otherwise all trials run to the end, as
    they always do with several objectives."""
    seed: int = Field(default=0, ge=0)
    """Seed of the search algorithm."""

    @field_validator("algorithm")
    @classmethod
    def _known(cls, algorithm: str) -> str:
        ALGORITHMS[algorithm]
        return algorithm

    @field_validator("objectives")
    @classmethod
    def _are_objectives(cls, objectives: list[str]) -> list[str]:
        check_objectives(objectives)
        return objectives

    @property
    def has_several_objectives(self) -> bool:
        return len(self.objectives) > 1

    @model_validator(mode="after")
    def _go_together(self) -> Search:
        if self.has_several_objectives and not ALGORITHMS[self.algorithm].multi_objective:
            accepted = "an algorithm for several objectives, for example tpe or nsga2"
            raise InvalidInput("algorithm", self.algorithm, accepted)
        if (self.budget is None) == (self.trials is None):
            given = "neither" if self.budget is None else "both"
            raise InvalidInput("budget and trials", given, "one of them")
        return self


def search_seeds(seeds: Collection[int]) -> tuple[int, ...]:
    """The seed of a search's trials, then those of its comparison; the table's ``seeds`` are not among them.

    The comparison's seeds are neither the one by which the best trial was chosen nor those that a table
    reports, so that neither number benefits from a lucky seed.

    >>> search_seeds([0, 1]), search_seeds([0, 1, 2, 1001])
    ((1000, 1001, 1002, 1003), (1000, 1002, 1003, 1004, 1005))
    """
    free = (seed for seed in count(FIRST_SEED) if seed not in seeds)
    return tuple(islice(free, 1 + max(COMPARED, len(seeds))))


def searched(config: Config, search: Search) -> dict[str, Hyperparameter]:
    """The parameters searched around a pinned configuration, by name, with ``Hyperparameter.search`` set.

    Ranges are widened to include the pinned value. A conditional hyperparameter is omitted unless some trial
    can satisfy its condition.

    Raises:
        InvalidInput: there is no parameter to search.
    """
    declarations = {
        name: dataclasses.replace(declared, search=_around(declared, chosen, pinned_value(config, name)))
        for name, declared in _declared(config.method).items()
        if (chosen := search.space.get(name, search.space.get(OTHERS, declared.search))) not in (None, PINNED)
    }
    active = {
        name: declared
        for name, declared in declarations.items()
        if declared.active(config.hyperparameters)
        or ((other := declarations.get(declared.when[0])) and {*declared.when[1:]} & {*(other.search or ())})
    }
    if not active:
        raise InvalidInput("search.space", "nothing to search", f"a range of one of {', '.join(TRAINING)}")
    return active


def pinned_value(config: Config, name: str) -> Any:
    """The value of a training option or of a hyperparameter."""
    return getattr(config, name) if name in TRAINING else config.hyperparameters[name]


def with_params(pinned: Config, params: Mapping[str, Any]) -> Config:
    """The pinned configuration with the parameters of one trial."""
    training = {name: value for name, value in params.items() if name in TRAINING}
    own = {name: value for name, value in params.items() if name not in TRAINING}
    hyperparameters = {**pinned.hyperparameters, **own}
    return validated(dataclasses.replace(pinned, **training, hyperparameters=hyperparameters))


def default_of(method: str, name: str) -> Any:
    """The default of a training option or of a hyperparameter, which has the type of all its values."""
    fields = Config.__dataclass_fields__ if name in TRAINING else METHODS[method].__dataclass_fields__
    return fields[name].default


def distribution(method: str, name: str, declared: Hyperparameter) -> Distribution:
    """The search range of a parameter, in Optuna's terms."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    assert declared.search is not None
    if declared.choices is not None:
        return CategoricalDistribution(declared.search)
    low, high = declared.search
    if isinstance(default_of(method, name), int):
        return IntDistribution(int(low), int(high), log=declared.log)
    return FloatDistribution(low, high, log=declared.log)


def check_space(search: Search, methods: Iterable[str]) -> None:
    """Check the ranges of a search for rows with these ``methods``.

    Raises:
        InvalidInput: for the first range whose parameter no row has, whose ends are in the wrong order, or
            that lies outside the parameter's domain for a method that has it.
    """
    known = {method: _declared(method) for method in sorted(methods)}
    for name, chosen in search.space.items():
        if name == OTHERS:
            if chosen != PINNED:
                raise InvalidInput(OTHERS, chosen, PINNED)
            continue
        owners = [method for method, declared in known.items() if name in declared]
        if not owners:
            raise unknown_name("parameter", name, {name for declared in known.values() for name in declared})
        if chosen == PINNED:
            continue
        for method in owners:
            where = name if name in TRAINING else f"{name} of {method}"
            _check_range(where, chosen, known[method][name], default_of(method, name))


def _check_range(where: str, chosen: Any, declared: Hyperparameter, default: Any) -> None:
    """Check the range or the choices of one parameter; ``where`` names it in messages."""
    if declared.choices is not None:
        for value in chosen:
            declared.check(where, value, default)
        return
    if isinstance(chosen[0], str) or len(chosen) != 2 or isinstance(default, bool):
        raise InvalidInput(where, chosen, "[lowest, highest], or pinned")
    for value in chosen:
        whole = isinstance(default, int) and float(value).is_integer()
        declared.check(where, int(value) if whole else value, default)
    if chosen[0] >= chosen[1]:
        raise InvalidInput(where, chosen, "the lower end first")
    if declared.log and chosen[0] <= 0:
        raise InvalidInput(where, chosen[0], "a lower end above 0: it is searched on a logarithmic scale")


def _declared(method: str) -> dict[str, Hyperparameter]:
    return {**TRAINING, **METHODS[method].declarations()}


def _around(declared: Hyperparameter, chosen: Any, pinned: Any) -> tuple[Any, ...]:
    """The range or the choices ``chosen``, extended to include the pinned value if the scale allows it."""
    if declared.choices is not None:
        return tuple(dict.fromkeys((*chosen, pinned)))
    low, high = chosen
    return (low, high) if declared.log and pinned <= 0 else (min(low, pinned), max(high, pinned))
