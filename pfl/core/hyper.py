"""Hyperparameters of a method: dataclass fields that carry their domain and their search range."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pfl.core.errors import InvalidInput

LARGEST = {float: 1e18, int: 10**9}
"""Largest accepted float and int: the product of two fits into float32 or int64."""


@dataclass(frozen=True)
class Hyperparameter:
    """The declaration of one hyperparameter.

    >>> Hyperparameter("share of rounds", low=0.0, high=1.0, search=(0.1, 0.9)).search
    (0.1, 0.9)

    Attributes:
        about: one line for lists and documentation.
        low, high: accepted values, inclusive (None means unbounded).
        search: the inclusive range, or some of the choices, of a search; None means not searched.
        log: search on a logarithmic scale.
        choices: accepted values of a categorical hyperparameter.
        when: another hyperparameter and some of its choices, as in ("form", "raw", "heur"). This one is
            searched only if the other has one of these choices. Otherwise it has no effect, or its search
            range is unsuitable. Trial keys do not depend on it.
        adaptation: only `Method.adaptation` reads it. Configurations that differ only in such
            hyperparameters are trained once.
        probe: value in `pfl.testing.cases`, which have few rounds and ten clients, if some of the method's
            code would have no effect there with the default.
    """

    about: str
    low: float | None = None
    high: float | None = None
    search: tuple[Any, ...] | None = None
    log: bool = False
    choices: tuple[Any, ...] | None = None
    when: tuple[str, ...] = ()
    adaptation: bool = False
    probe: Any = None

    def active(self, values: Mapping[str, Any]) -> bool:
        """Whether this one is searched, given the ``values`` of the others."""
        return not self.when or values[self.when[0]] in self.when[1:]

    def check(self, name: str, value: Any, default: Any) -> None:
        """Raise `InvalidInput` unless ``value`` has the default's type and lies in the domain."""
        accepted = self.domain(default)
        if self.choices is not None:
            valid = value in self.choices
        elif isinstance(default, bool):
            valid = isinstance(value, bool)
        else:
            number = int if isinstance(default, int) else (int, float)
            largest = LARGEST[type(default)]
            valid = (
                isinstance(value, number)
                and not isinstance(value, bool)
                and abs(value) <= largest
                and (self.low is None or value >= self.low)
                and (self.high is None or value <= self.high)
            )
            accepted += f", up to {largest:g}" if self.high is None else ""
        if not valid:
            raise InvalidInput(name, value, accepted)

    def domain(self, default: Any) -> str:
        """The accepted values in words, for example "a number in [0, 1]"."""
        if self.choices is not None:
            return "one of " + ", ".join(str(choice) for choice in self.choices)
        if isinstance(default, bool):
            return "true or false"
        kind = "integer" if isinstance(default, int) else "number"
        described = "an integer" if isinstance(default, int) else "a number"
        if self.low is None:
            return described if self.high is None else f"{described} of at most {self.high:.12g}"
        if self.high is not None:
            return f"{described} in [{self.low:.12g}, {self.high:.12g}]"
        if self.low == 0 or (self.low == 1 and kind == "integer"):
            return f"a {'positive' if self.low else 'non-negative'} {kind}"
        return f"{described} of at least {self.low:.12g}"


def hyper(default: Any, about: str, **declaration: Any) -> Any:
    """Declare a dataclass field as a hyperparameter.

    >>> rho: float = hyper(0.5, "share of rounds", low=0.0, high=1.0, search=(0.0, 1.0))
    """
    return dataclasses.field(default=default, metadata={"hyper": Hyperparameter(about, **declaration)})


def check_declared(cls: type) -> None:
    """Check that a class with hyperparameters, or with options of a partition rule, is a dataclass.

    Raises:
        InvalidInput: it is not; the message names the class and its first declaration.
    """
    for owner in cls.__mro__:
        for name, value in vars(owner).items():
            if isinstance(value, dataclasses.Field):  # replaced by the default in a dataclass
                where, accepted = f"{owner.__name__}.{name}", "@dataclass(frozen=True) before the class"
                raise InvalidInput(where, "a field of a class that is not a dataclass", accepted)
