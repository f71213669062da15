"""Checks of a local program: its phases before a backend runs them, and what its hooks return."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from pfl.core.errors import InvalidInput
from pfl.engine.client import Client
from pfl.engine.groups import Groups
from pfl.engine.method import Method, Phase, Step
from pfl.engine.returned import check_tensor, wrong_type


def check_phases(where: str, phases: Any, groups: Groups) -> None:
    """Check a local program, which ``where`` returned or was given.

    Raises:
        InvalidInput: it is not a tuple of phases, or a phase has an unknown group, nothing to train or an
            invalid number.
    """
    if not isinstance(phases, tuple | list):
        raise wrong_type(where, phases, "a tuple of Phase(...)")
    for phase in phases:
        if not isinstance(phase, Phase):
            raise InvalidInput(where, f"a value of type {type(phase).__name__}", "a tuple of Phase(...)")
        for name in _NUMBERS:
            _check_number(where, name, getattr(phase, name))
        for name, hook in phase.hooks.items():
            if not (hook is None or callable(hook)):
                raise InvalidInput(f"{where}: Phase({name})", hook, "a function or None")
        if not isinstance(phase.trains, tuple | list):
            raise InvalidInput(f"{where}: Phase(trains)", repr(phase.trains), "a tuple of groups")
        try:
            trained = groups.trained(phase.trains)
        except InvalidInput as error:
            error.locate(f"{where}: Phase(trains)")
            raise
        if not trained and phase.step is None:
            accepted = "at least one group with parameters, or a custom step"
            raise InvalidInput(f"{where}: Phase(trains)", repr(phase.trains), accepted)


_NUMBERS = {
    "epochs": (Real, 0, "a non-negative number or None"),
    "steps": (Integral, 0, "a non-negative integer or None"),
    "batch_size": (Integral, 1, "a positive integer or None"),
    "lr": (Real, -math.inf, "a finite number"),
    "repeat": (Integral, 1, "a positive integer"),
    "batches": (Integral, 1, "a positive integer"),
    "noise": (Integral, 0, "a non-negative integer"),
}
"""The type and the least value of each number of a phase."""


def _check_number(where: str, name: str, value: Any) -> None:
    kind, least, accepted = _NUMBERS[name]
    if value is None and getattr(Phase, name) is None:
        return
    if not isinstance(value, kind) or not math.isfinite(value) or value < least:
        raise InvalidInput(f"{where}: Phase({name})", value, accepted)


def check_gradient(method: Method, returned: Any, client: Client) -> None:
    """Check what a phase's ``gradient`` returned for a client.

    Raises:
        InvalidInput: it is not a pair of a tensor for each parameter in training, by name, and a scalar.
    """
    where = f"{type(method).__name__}: Phase(gradient)"
    accepted = "a mapping from the parameters in training to tensors, and the loss"
    if not (isinstance(returned, Sequence) and len(returned) == 2 and isinstance(returned[0], Mapping)):
        raise wrong_type(where, returned, accepted)
    direction, loss = returned
    for name, weight in client.weights.items():
        if name not in direction:
            raise InvalidInput(where, f"a mapping without {name!r}", accepted)
        check_tensor(f"{where}: {name}", direction[name], weight.shape)
    check_tensor(f"{where}: loss", loss, ())


def check_step(method: Method, returned: Any, client: Client) -> None:
    """Check what a phase's ``step`` returned for a client.

    Raises:
        InvalidInput: it is not a `Step` with values of parameters in training, values of entries of the
            client's state and a scalar.
    """
    where = f"{type(method).__name__}: Phase(step)"
    if not isinstance(returned, Step):
        raise wrong_type(where, returned, "a Step(...)")
    for part in ("params", "state"):
        if not isinstance(values := getattr(returned, part), Mapping):
            raise wrong_type(f"{where}: {part}", values, "a mapping from names to tensors")
    for name, value in returned.params.items():
        if name not in client.trained:
            raise InvalidInput(f"{where}: params", repr(name), "names of parameters in training")
        check_tensor(f"{where}: {name}", value, client.params[name].shape)
    for name, value in returned.state.items():
        if name not in client.state:
            raise InvalidInput(f"{where}: state", repr(name), "names in client.state")
        _check_like(client.state[name], f"{where}: state[{name!r}]", value)
    check_tensor(f"{where}: loss", returned.loss, ())


def _check_like(stored: Any, where: str, value: Any) -> None:
    """Check that ``value`` has the shape of ``stored`` or, if it is nested, its names and shapes."""
    if not isinstance(stored, dict):
        check_tensor(where, value, stored.shape)
        return
    if not isinstance(value, dict):
        raise wrong_type(where, value, "a dictionary of tensors by name")
    if different := stored.keys() ^ value.keys():
        name = min(different, key=str)
        lacking = "without" if name in stored else "with"
        raise InvalidInput(where, f"a dictionary {lacking} {name!r}", "the names in client.state")
    for name, part in stored.items():
        _check_like(part, f"{where}[{name!r}]", value[name])
