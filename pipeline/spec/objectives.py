"""What a search optimises: the reported accuracy and, optionally, quantities in reports' columns."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pfl.core.errors import InvalidInput, check_names
from pfl.run.trials import Record
from pipeline.columns import COLUMNS, Goal

ACCURACY = "accuracy"
"""The accuracy that the table reports; always the first objective, because it decides what is selected."""


def check_objectives(names: Sequence[str]) -> None:
    """Check the objectives of a search.

    Raises:
        InvalidInput: accuracy is not the first, one occurs twice, or one is unknown.
    """
    if not names or names[0] != ACCURACY or len(set(names)) < len(names):
        raise InvalidInput("objectives", f"[{', '.join(names)}]", "accuracy first, and each name once")
    check_names("objective", names[1:], [name for name in COLUMNS if COLUMNS[name].goal])


def goals(names: Sequence[str]) -> list[Goal]:
    """The direction of each objective, in Optuna's terms.

    >>> goals(["accuracy", "megabytes"])
    ['maximize', 'minimize']
    """
    return ["maximize", *(goal for name in names[1:] if (goal := COLUMNS[name].goal))]


def others(names: Sequence[str], record: Record) -> tuple[float, ...]:
    """A run's values of the objectives ``names`` except the accuracy.

    A run that diverged or lacks the quantity gets the worst value, an infinity.
    """
    values = []
    for name, goal in zip(names[1:], goals(names)[1:], strict=True):
        value = None if record.failure else COLUMNS[name].quantity(record)
        values.append(value if value is not None else math.inf if goal == "minimize" else -math.inf)
    return tuple(values)
