"""Formatting of numbers and text for terminal and reports."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


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


def drawn_text(text: str) -> str:
    r"""A text escaped so that matplotlib draws it unchanged.

    Dollar signs would delimit a formula. A legend omits a label that is empty or begins with an underscore,
    unless a zero-width space comes first.

    >>> drawn_text("$5 and $10"), drawn_text("_mine")
    ('\\$5 and \\$10', '\u200b_mine')
    """
    return ("\u200b" if text[:1] in ("", "_") else "") + text.replace("$", r"\$")


def parameter(value: Any) -> str:
    """The value of a hyperparameter.

    >>> parameter(0.51234567), parameter(1024)
    ('0.512', '1024')
    """
    return f"{value:.3g}" if isinstance(value, float) else str(value)
