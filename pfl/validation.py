"""Whether a simulation's configuration, execution and seeds are accepted, and what follows from them.

This is above the methods and networks, since a method's hyperparameters are part of its configuration.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from pfl.config import (
    Augmentation,
    BatchOrder,
    BNStats,
    Config,
    DType,
    Execution,
    InputScale,
    LRSchedule,
    Observed,
    Precision,
)
from pfl.errors import InvalidInput, unknown_name
from pfl.hyper import LARGEST
from pfl.methods import METHODS
from pfl.models import MODELS

_COUNTS = {"rounds": 1, "epochs": 1, "batch_size": 1, "eval_every": 1, "lr_step": 1, "lr_warmup": 0}
_RATES: dict[str, tuple[Callable[[float], bool], str]] = {
    "participation": (lambda share: 0 < share <= 1, "a number in (0, 1]"),
    "lr": (lambda rate: 0 < rate <= LARGEST[float], f"a number above 0, up to {LARGEST[float]:g}"),
    "momentum": (lambda share: 0 <= share < 1, "a number in [0, 1)"),
    "weight_decay": (
        lambda rate: 0 <= rate <= LARGEST[float],
        f"a number of at least 0, up to {LARGEST[float]:g}",
    ),
    "lr_gamma": (lambda factor: 0 < factor <= 1, "a number in (0, 1]"),
    "validation": (lambda share: 0 <= share < 1, "a number in [0, 1)"),
}
_CHOICES = {
    "lr_schedule": LRSchedule,
    "batch_order": BatchOrder,
    "augmentation": Augmentation,
    "input_scale": InputScale,
    "bn_stats": BNStats,
    "dtype": DType,
    "precision": Precision,
    "observe": Observed,
}
DEVICES = r"auto|cpu|cuda(:(0|[1-9][0-9]?))?"
MOST_THREADS = 1024


def validated(config: Config) -> Config:
    """``config`` with the method's defaults filled in.

    Raises:
        InvalidInput: a name is unknown or a value is outside its range.
    """
    for name, least in _COUNTS.items():
        value = getattr(config, name)
        holds = type(value) is int and least <= value <= LARGEST[int]
        _check(name, value, holds, f"a whole number of at least {least}, up to {LARGEST[int]:g}")
    for name, (in_range, accepted) in _RATES.items():
        value = getattr(config, name)
        _check(name, value, type(value) in (int, float) and in_range(value), accepted)
    for name, kind in _CHOICES.items():
        value, choices = getattr(config, name), get_args(kind)
        _check(name, value, value in choices, " or ".join(choices))
    for name in ("lr_step", "lr_gamma"):
        usual = getattr(config, name) == getattr(Config, name)
        _check(
            name, getattr(config, name), usual or config.lr_schedule == "step", "lr_schedule step beside it"
        )
    lower = config.precision != "fp32"
    _check("precision", config.precision, not lower or config.dtype == "float32", "fp32 beside dtype float64")
    if config.model not in MODELS:  # the name only: importing a network imports torch
        raise unknown_name("model", config.model, MODELS)
    method = METHODS[config.method].from_dict(config.hyperparameters)
    # 1 and 1.0 must have one key
    rates: dict[str, Any] = {name: float(getattr(config, name)) for name in _RATES}
    return dataclasses.replace(config, hyperparameters=method.hyperparameters(), **rates)


def warnings_of(config: Config) -> tuple[str, ...]:
    """One line for each way in which the method merely degenerates under ``config``."""
    return METHODS[config.method].from_dict(config.hyperparameters).warnings(config)


def non_defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    """The method and all values that are not the default, of `Config.to_dict` of a validated configuration.

    It stays the same when an option is added.
    """
    usual = validated(Config(method=config["method"])).to_dict()
    values = {name: value for name, value in config.items() if value != usual[name]}
    own = usual["hyperparameters"]
    values["hyperparameters"] = {
        name: value for name, value in config["hyperparameters"].items() if value != own[name]
    }
    return {"method": config["method"], **values}


def stackable(configs: Sequence[Config]) -> bool:
    """Whether the clients of all validated ``configs`` can be in one stack: whether these differ in nothing
    but the learning rate and real-valued hyperparameters.
    """

    def rest(config: Config) -> Config:
        numbers = METHODS[config.method].from_dict(config.hyperparameters).numbers()
        kept = {name: value for name, value in config.hyperparameters.items() if name not in numbers}
        return dataclasses.replace(config, lr=1.0, hyperparameters=kept)

    return all(rest(config) == rest(configs[0]) for config in configs)


def check_execution(execution: Execution) -> None:
    """Check what can be checked without torch.

    Raises:
        InvalidInput: a value is outside its range.
    """
    backend, device, threads = execution.backend, execution.device, execution.threads
    _check("backend", backend, backend in ("auto", "loop", "stacked"), "loop, stacked or auto")
    _check("device", device, re.fullmatch(DEVICES, device) is not None, "cpu, cuda, cuda:N or auto")
    holds = type(threads) is int and 1 <= threads <= MOST_THREADS
    _check("threads", threads, holds, f"a whole number in [1, {MOST_THREADS}]")


def check_pause(until: int | None, config: Config) -> None:
    """Check that a simulation can pause after the round ``until``.

    Raises:
        InvalidInput: nothing is evaluated after that round.
    """
    if until is not None:
        evaluated = until == config.rounds or (0 < until < config.rounds and until % config.eval_every == 0)
        accepted = f"a multiple of eval_every ({config.eval_every}) up to {config.rounds}"
        _check("until", until, evaluated, accepted)


def check_seeds(seeds: Sequence[int]) -> None:
    """Check the seeds of a simulation.

    Raises:
        InvalidInput: there is none, one occurs twice, or one is no non-negative integer.
    """
    holds = all(type(seed) is int and seed >= 0 for seed in seeds) and 0 < len(set(seeds)) == len(seeds)
    _check("seeds", list(seeds), holds, "one or more different whole numbers of at least 0")


def _check(parameter: str, value: object, holds: bool, accepted: str) -> None:
    if not holds:
        raise InvalidInput(parameter, value, accepted)
