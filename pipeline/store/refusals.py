"""Refused records: kept but never used, because their numbers could not be confirmed."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from pfl.core.errors import InvalidInput
from pfl.core.files import write_text
from pfl.core.text import csv_text

FILE = Path("results/ledger/refused.csv")


class Refusal(NamedTuple):
    """A record that is never used.

    Attributes:
        checksum: of the record; other records with the same key may be used.
        reason: why, in one line.
    """

    table: str
    cell: str
    seed: str
    key: str
    checksum: str
    reason: str


def refusals(root: Path = Path()) -> dict[str, Refusal]:
    """The refused rows, by their checksums.

    Args:
        root: the project's folder.

    Raises:
        InvalidInput: the file has a different format.
    """
    if not (root / FILE).exists():
        return {}
    accepted = f"a CSV file with the columns {', '.join(Refusal._fields)}"
    try:
        header, *rows = csv.reader((root / FILE).read_text(encoding="utf-8").splitlines())
        listed = [Refusal(*row) for row in rows]
    except (OSError, ValueError, TypeError, csv.Error):
        raise InvalidInput("refused rows", str(FILE), accepted) from None
    if tuple(header) != Refusal._fields:
        raise InvalidInput("refused rows", str(FILE), accepted)
    return {refusal.checksum: refusal for refusal in listed}


def refuse(rows: Iterable[Refusal]) -> None:
    """Add records to the file."""
    listed = refusals() | {refusal.checksum: refusal for refusal in rows}
    write_text(FILE, csv_text(Refusal._fields, sorted(listed.values())))
