"""Read CSV files; an error is one line, which names the file and its line."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from pfl.core.errors import InvalidInput

T = TypeVar("T")


def number(text: str) -> float:
    """The finite number in a field.

    Raises:
        ValueError: it is none; Python's `float` also reads "nan" and "inf".
    """
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a finite number")
    return value


def read_csv(path: Path, parse: Callable[[dict[str, str]], T], columns: Sequence[str] = ()) -> list[T]:
    """What ``parse`` returns for each line of a CSV file; empty if there is no file.

    Args:
        parse: raises a `KeyError`, `TypeError` or `ValueError` for values that it does not accept.
        columns: those that the file must have.

    Raises:
        InvalidInput: for the first invalid or unreadable line.
    """
    if not path.exists():
        return []
    values: list[T] = []
    number, wanted = 1, columns
    try:
        with path.open(newline="", encoding="utf-8-sig") as lines:  # spreadsheets write a byte order mark
            reader = csv.DictReader(lines)
            header = reader.fieldnames or ()
            wanted = columns or header
            if missing := [name for name in wanted if name not in header]:
                raise ValueError(f"no column {missing[0]}")
            if len({*header}) < len(header):
                raise ValueError("duplicate column")
            for row in reader:
                number = reader.line_num
                if None in row or None in row.values():
                    raise ValueError("number of fields differs from the header")
                values.append(parse(row))
                number += 1  # in case the next line cannot be read
    except (OSError, csv.Error, KeyError, TypeError, ValueError) as error:
        accepted = f"values of the columns {', '.join(wanted)} ({error})"
        raise InvalidInput(f"{path}:{number}", "the line", accepted) from None
    return values
