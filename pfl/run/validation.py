"""Validation of a simulation's configuration, execution and seeds.

It imports methods and networks, because a method's hyperparameters are part of its configuration.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from pfl.client_metrics import CLIENT_METRICS
from pfl.core.config import Config, Execution
from pfl.core.cores import cores
from pfl.core.errors import InvalidInput, check_names
from pfl.core.text import amount
from pfl.methods import METHODS
from pfl.models import MODELS

_FIELDS = get_type_hints(Config, include_extras=True)
DEVICES = r"auto|cpu|cuda(:(0|[1-9][0-9]?))?"
MOST_THREADS = 1024


def validated(config: Config) -> Config:
    """``config`` with the method's defaults filled in.

    Raises:
        InvalidInput: a name is unknown or a value is outside its range.
    """
    rates: dict[str, Any] = {}
    for name, field in _FIELDS.items():
        value = getattr(config, name)
        if get_origin(field) is Literal:
            choices = get_args(field)
            _check(name, value, isinstance(value, str) and value in choices, " or ".join(choices))
        elif get_origin(field) is Annotated:
            kind, accepted = get_args(field)
            numbers = (int,) if kind is int else (int, float)
            _check(name, repr(value), type(value) in numbers and accepted.test(value), accepted.words)
            if kind is float:
                rates[name] = float(value)  # 1 and 1.0 must have the same key
    for name, used, condition in (
        ("lr_step", config.lr_schedule == "step", "lr_schedule is step"),
        ("lr_gamma", config.lr_schedule == "step", "lr_schedule is step"),
        ("min_delta", config.patience > 0, "patience is set"),
        ("stop_share", config.patience > 0, "patience is set"),
        ("unseen_epochs", config.unseen > 0, "unseen is set"),
    ):
        value = getattr(config, name)
        _check(name, value, used or value == getattr(Config, name), f"the default unless {condition}")
    whole = config.observe == Config.observe  # anything else is measured after the last round
    _check("patience", config.patience, whole or not config.patience, f"0 with observe {config.observe}")
    lower = config.precision != "fp32"
    _check("precision", config.precision, not lower or config.dtype == "float32", "fp32 with dtype float64")
    check_names("model", [config.model], MODELS)  # the name only: importing a network imports torch
    method = METHODS[config.method].from_dict(config.hyperparameters)
    return dataclasses.replace(
        config, hyperparameters=method.hyperparameters(), metrics=_metrics(config.metrics), **rates
    )


def _metrics(names: Sequence[str]) -> tuple[str, ...]:
    """Names of metrics, each once and sorted, because their order does not affect results."""
    _check("metrics", names, isinstance(names, list | tuple), "a list of names of `pfl metrics`")
    names = list(map(str, names))
    check_names("metrics", names, CLIENT_METRICS)  # the names only: importing a metric imports scikit-learn
    return tuple(sorted(set(names)))


def warnings_of(config: Config) -> tuple[str, ...]:
    """One line for each option in ``config`` that is valid, but probably unintended, or unused."""
    method = METHODS[config.method].from_dict(config.hyperparameters)
    lines = method.warnings(config)
    hook = f"{type(method).__name__}.warnings"
    _check(hook, repr(lines), isinstance(lines, tuple | list), "a tuple of lines")
    return tuple(lines)


def non_defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    """The method and all non-default values in the `Config.to_dict` of a validated configuration.

    The result does not change when an option is added, or a hyperparameter removed that had its default.
    """
    usual = validated(Config(method=config["method"])).to_dict()
    values = {name: value for name, value in config.items() if value != usual[name]}
    own = usual["hyperparameters"]
    values["hyperparameters"] = {
        name: value for name, value in config["hyperparameters"].items() if name in own and value != own[name]
    }
    return {"method": config["method"], **values}


def of_record(config: Mapping[str, Any]) -> Config:
    """The validated configuration of a record, which may be older than the current hyperparameters.

    Newer ones have their defaults, and removed ones are left out: neither is in the key. A record in which a
    removed one had another value than its default has this value in its key, which thus does not match.

    Raises:
        InvalidInput: another option, the method or the network no longer exists.
    """
    known = Config.from_dict(config)
    declared = METHODS[known.method].declarations()
    own = {name: value for name, value in known.hyperparameters.items() if name in declared}
    return validated(dataclasses.replace(known, hyperparameters=own))


def train_alike(configs: Sequence[Config]) -> bool:
    """Whether all validated ``configs`` can share one training: whether they differ only in hyperparameters
    that only the adaptation before an evaluation reads.
    """
    trained = [_as_trained(config) for config in configs]
    return all(config == trained[0] for config in trained)


def stackable(configs: Sequence[Config]) -> bool:
    """Whether the clients of all validated ``configs`` can share a stack: whether training differs only in
    the learning rate and real-valued hyperparameters.
    """

    def rest(config: Config) -> Config:
        config = _as_trained(config)
        numbers = METHODS[config.method].from_dict(config.hyperparameters).numbers()
        kept = {name: value for name, value in config.hyperparameters.items() if name not in numbers}
        return dataclasses.replace(config, lr=1.0, hyperparameters=kept)

    return all(rest(config) == rest(configs[0]) for config in configs)


def _as_trained(config: Config) -> Config:
    """``config`` reduced to what its training depends on."""
    method = METHODS[config.method].from_dict(config.hyperparameters).as_trained()
    return dataclasses.replace(config, hyperparameters=method.hyperparameters())


def check_execution(execution: Execution) -> None:
    """Check what can be checked without torch.

    Raises:
        InvalidInput: a value is outside its range.
    """
    _check(
        "execution",
        execution,
        isinstance(execution, Execution),
        "an Execution, as in Execution(device='cpu')",
    )
    backend, device, threads = execution.backend, execution.device, execution.threads
    _check("backend", backend, backend in ("auto", "loop", "stacked"), "loop, stacked or auto")
    _check("device", device, re.fullmatch(DEVICES, str(device)) is not None, "cpu, cuda, cuda:N or auto")
    accepted = f"an integer in [1, {MOST_THREADS}]"
    _check("threads", threads, type(threads) is int and 1 <= threads <= MOST_THREADS, accepted)
    workers = execution.workers
    holds = workers is None or (type(workers) is int and 1 <= workers <= MOST_THREADS)
    _check("workers", workers, holds, accepted)
    moments, until = execution.moments, execution.until
    accepted = "a tuple of moments; () means all"
    _check("moments", repr(moments), isinstance(moments, tuple | list), accepted)
    accepted = "a round, as an integer, or None"
    _check("until", repr(until), until is None or type(until) is int, accepted)


def execution_warnings(execution: Execution) -> tuple[str, ...]:
    """One line for each option of ``execution`` that is valid, but probably unintended.

    More threads than cores are accepted, because only the same number of threads gives bit-identical results.
    """
    from pfl.engine.device import resolve_device

    lines = []
    if execution.threads > cores():
        here = amount(cores(), "core")
        lines.append(f"threads is {execution.threads}, more than the {here} here: training is slower")
    if execution.backend == "stacked" and resolve_device(execution.device).type == "cpu":
        lines.append("backend is stacked, which is for GPUs: on a CPU, loop is faster")
    return tuple(lines)


def check_pause(execution: Execution, config: Config) -> None:
    """Check that a simulation can pause after the round ``execution.until``.

    Raises:
        InvalidInput: there is no evaluation after that round, or it lacks the headline moment.
    """
    until, moments = execution.until, execution.moments
    if until is None or until == config.rounds:
        return
    evaluated = 0 < until < config.rounds and until % config.eval_every == 0
    _check("until", until, evaluated, f"a multiple of eval_every ({config.eval_every}) up to {config.rounds}")
    headline = METHODS[config.method].headline
    accepted = f"moments that include {headline} if until is set"
    _check("moments", ", ".join(moments), not moments or headline in moments, accepted)


def check_moments(execution: Execution, config: Config) -> None:
    """Check that the method of a validated ``config`` has the moments of ``execution``.

    Raises:
        InvalidInput: a moment is unknown, or it is "adapted" and there is no adaptation.
    """
    from pfl.engine.method import Moment

    known = [moment for moment in get_args(Moment) if moment != "adapted" or _adapts(config)]
    accepted = f"some of {', '.join(known)}, as {config.method} has with these hyperparameters"
    for moment in execution.moments:
        _check("moments", moment, moment in known, accepted)


def _adapts(config: Config) -> bool:
    """Whether a method with these hyperparameters adapts; a hook that reads the server is taken to do so."""
    method: Any = METHODS[config.method].from_dict(config.hyperparameters)
    try:
        return bool(method.adaptation(None))
    except Exception:  # there is no server yet
        return True


def check_seeds(seeds: Sequence[int]) -> None:
    """Check the seeds of a simulation.

    Raises:
        InvalidInput: there is no seed, one occurs twice, or one is not a non-negative integer.
    """
    holds = all(type(seed) is int and seed >= 0 for seed in seeds) and 0 < len(set(seeds)) == len(seeds)
    _check("seeds", list(seeds), holds, "one or more distinct non-negative integers")


def _check(parameter: str, value: object, holds: bool, accepted: str) -> None:
    if not holds:
        raise InvalidInput(parameter, value, accepted)
