"""Conformance kits: the rules for one kind of component, each a function that raises if it is violated."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
import torch

from pfl.core.errors import check_names
from pfl.core.text import amount, first_line
from pfl.run.errors import cause_of

if TYPE_CHECKING:
    from pfl.engine.result import Result

T = TypeVar("T")
Check = Callable[[T], None]


class Violated(Exception):  # noqa: N818 - "raise Violated" reads naturally
    """The violation of a rule, in one line."""


class Violations(AssertionError):  # noqa: N818
    """The rules that a component violates; the message has one line per rule.

    Attributes:
        component: its name.
        lines: what is wrong, by the name of the violated rule.
    """

    def __init__(self, component: str, lines: Mapping[str, str]):
        super().__init__(component, dict(lines))
        self.component, self.lines = component, dict(lines)

    def __str__(self) -> str:
        head = f"{self.component} violates {amount(len(self.lines), 'rule')}:"
        return "\n".join([head, *(f"  {rule}: {line}" for rule, line in self.lines.items())])


class Kit(Generic[T]):
    """The rules for one kind of component.

    Attributes:
        rules: name to rule, in the order in which they are checked. The docstring of a rule states it.
    """

    def __init__(self) -> None:
        self.rules: dict[str, Check[T]] = {}
        self._decisive: set[str] = set()

    def rule(self, rule: Check[T]) -> Check[T]:
        """Add a rule under the name of its function."""
        self.rules[rule.__name__] = rule
        return rule

    def decisive(self, rule: Check[T]) -> Check[T]:
        """Add a rule on which all later rules depend. If it is violated, the later rules are skipped."""
        self._decisive.add(rule.__name__)
        return self.rule(rule)

    def check(self, name: str, component: T, chosen: Sequence[str] | None = None) -> None:
        """Check the ``chosen`` rules, by default all.

        Raises:
            Violations: rules are violated.
            InvalidInput: a chosen rule does not exist.
        """
        check_names("rule", chosen or (), self.rules)
        lines: dict[str, str] = {}
        crash: Exception | None = None
        for rule in self.rules if chosen is None else chosen:
            try:
                self.rules[rule](component)
            except Violated as objection:
                lines[rule] = first_line(objection)
            except Exception as error:  # whatever the component raises
                lines[rule] = cause_of(error)
                crash = crash or error
            if rule in lines and rule in self._decisive:
                break
        if lines:
            raise Violations(name, lines) from crash


def check_finite(result: Result) -> None:
    """Check that a simulation did not diverge, and that its training losses are finite."""
    losses = [entry.train_loss for entry in result.metrics.rounds]
    if result.metrics.diverged_at is not None or not all(map(math.isfinite, losses)):
        raise Violated(f"the training losses are {', '.join(f'{loss:.4g}' for loss in losses)}")


@contextmanager
def random_state(seed: int) -> Iterator[None]:
    """A context in which the global random states of Python, NumPy and torch are seeded with ``seed``."""
    states = random.getstate(), np.random.get_state()  # noqa: NPY002 - a component must not depend on it
    with torch.random.fork_rng(devices=[]):
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])  # noqa: NPY002
