"""Checks of a local program, before a backend runs it."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from pfl.core.errors import InvalidInput
from pfl.engine.groups import Groups
from pfl.engine.method import Phase


def check_phases(where: str, phases: Any, groups: Groups) -> None:
    """Check a local program, which ``where`` returned or gave.

    Raises:
        InvalidInput: it is no tuple of phases, or a phase has an unknown group or an impossible number.
    """
    if not isinstance(phases, tuple | list):
        raise InvalidInput(where, f"a return value of type {type(phases).__name__}", "a tuple of Phase(...)")
    for phase in phases:
        if not isinstance(phase, Phase):
            raise InvalidInput(where, f"a value of type {type(phase).__name__}", "a tuple of Phase(...)")
        for name in _NUMBERS:
            _check_number(where, name, getattr(phase, name))
        for name in ("loss", "gradient", "step"):
            if not (getattr(phase, name) is None or callable(getattr(phase, name))):
                raise InvalidInput(f"{where}: Phase({name})", getattr(phase, name), "a function or None")
        if not isinstance(phase.trains, tuple | list):
            raise InvalidInput(f"{where}: Phase(trains)", repr(phase.trains), "a tuple of groups")
        try:
            groups.trained(phase.trains)
        except InvalidInput as error:
            error.locate(f"{where}: Phase(trains)")
            raise


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
