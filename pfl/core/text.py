"""Formatting of numbers and text for terminal and reports."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

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


def gain(mean: float, error: float | None) -> str:
    """A mean difference in points with its standard error, if that is known.

    >>> gain(1.5, 0.25), gain(1.5, None)
    ('+1.50 ± 0.25', '+1.50')
    """
    return signed(mean) if error is None else f"{signed(mean)} ± {points(error)}"


def count(value: float) -> str:
    """A count, or a mean of counts.

    >>> count(60000.0), count(469.85)
    ('60,000', '469.9')
    """
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def amount(number: int, noun: str, plural: str = "s") -> str:
    """A count with its noun.

    >>> amount(1, "trial"), amount(2500, "trial"), amount(2, "class", plural="es")
    ('1 trial', '2,500 trials', '2 classes')
    """
    return f"{number:,} {noun}{'' if number == 1 else plural}"


def listed(names: Sequence[str], most: int = 5) -> str:
    """Quoted names; only the first ones if there are many.

    >>> listed(["a", "b"]), listed(list("abcdefgh"), most=2)
    ("'a', 'b'", "'a', 'b', ...")
    """
    return ", ".join([*map(repr, names[:most]), *(["..."] if len(names) > most else [])])


def distinct(prefix: str, columns: Mapping[str, T], taken: Container[str]) -> dict[str, T]:
    """``columns``, with a prefix on each name that is already taken.

    >>> distinct("setting_", {"iid": 1, "rank": 2}, {"method", "rank"})
    {'iid': 1, 'setting_rank': 2}
    """

    def free(name: str) -> str:
        return free(prefix + name) if name in taken else name

    return {free(name): column for name, column in columns.items()}


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


def first_line(error: BaseException) -> str:
    """The first line of an error's message.

    >>> first_line(ValueError("no such table: runs\\n[SQL: SELECT 1]"))
    'no such table: runs'
    """
    return str(error).strip().partition("\n")[0]


def without_password(text: str) -> str:
    """Text without the users and passwords in its URLs.

    >>> without_password("http://me:secret@host:5000 does not answer")
    'http://host:5000 does not answer'
    """
    return re.sub(r"//[^/\s]*@", "//", text)


def csv_text(header: Iterable[Any], rows: Iterable[Iterable[Any]]) -> str:
    r"""The text of a CSV file.

    >>> csv_text(("client", "accuracy"), [(0, 81.5), (1, None)])
    'client,accuracy\n0,81.5\n1,\n'
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    return text.getvalue()


def drawn_text(text: str) -> str:
    r"""A text escaped so that matplotlib draws it unchanged.

    Dollar signs would delimit a formula. A legend omits a label that is empty or begins with an underscore,
    unless a zero-width space comes first.

    >>> drawn_text("$5 and $10"), drawn_text("_mine")
    ('\\$5 and \\$10', '\u200b_mine')
    """
    return ("\u200b" if text[:1] in ("", "_") else "") + text.replace("$", r"\$")


def parameters(values: Mapping[str, Any]) -> str:
    """Hyperparameters on one line.

    >>> parameters({"rho": 0.51234567, "head_epochs": 3})
    'rho = 0.512, head_epochs = 3'
    """
    return ", ".join(f"{name} = {parameter(value)}" for name, value in values.items())


def parameter(value: Any) -> str:
    """The value of a hyperparameter.

    >>> parameter(0.51234567), parameter(1024)
    ('0.512', '1024')
    """
    return f"{value:.3g}" if isinstance(value, float) else str(value)
