"""Formatting of accuracies, times, hyperparameters and CSV files for reports and the terminal."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pfl.core.text import parameter

LEAST = 0.005  # smaller values round to 0.00


def points(value: float) -> str:
    """An accuracy, a deviation or another quantity, as printed in tables.

    >>> points(82.4051), points(-0.00037)
    ('82.41', '−0.00037')
    """
    shown = f"{value:.2g}" if 0 < abs(value) < LEAST else f"{value:.2f}"
    return shown.replace("-", "−")


def signed(value: float) -> str:
    """A difference in points.

    >>> signed(-1.889), signed(0.5)
    ('−1.89', '+0.50')
    """
    return f"{value:+.2f}".replace("-", "−")


def enumeration(names: Sequence[str]) -> str:
    """Names as in "A, B and C".

    >>> enumeration(["A"]), enumeration(["A", "B"]), enumeration(["A", "B", "C"])
    ('A', 'A and B', 'A, B and C')
    """
    return ", ".join(names[:-1]) + (" and " if len(names) > 1 else "") + names[-1] if names else ""


def gain(mean: float, error: float | None) -> str:
    """A mean difference in points with its standard error, if that is known.

    >>> gain(1.5, 0.25), gain(1.5, None)
    ('+1.50 ± 0.25', '+1.50')
    """
    return signed(mean) if error is None else f"{signed(mean)} ± {points(error)}"


def duration(seconds: float) -> str:
    """A duration in readable units.

    >>> duration(153.2)
    '2 min 33 s'
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def parameters(values: Mapping[str, Any]) -> str:
    """Hyperparameters on one line.

    >>> parameters({"rho": 0.51234567, "head_epochs": 3})
    'rho = 0.512, head_epochs = 3'
    """
    return ", ".join(f"{name} = {parameter(value)}" for name, value in values.items())


def csv_text(header: Iterable[Any], rows: Iterable[Iterable[Any]]) -> str:
    r"""The text of a CSV file.

    >>> csv_text(("client", "accuracy"), [(0, 81.5), (1, None)])
    'client,accuracy\n0,81.5\n1,\n'
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    return text.getvalue()
