"""Refused records: kept but never used, because their numbers could not be confirmed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from pfl.core.files import folder_lock, write_text, writing
from pipeline.formatting import csv_text
from pipeline.spec.csv_file import read_csv

FILE = Path("results/ledger/refused.csv")


class Refusal(NamedTuple):
    """A record that is never used.

    Attributes:
        checksum: the record's checksum; other records with the same key may be used.
        reason: the reason, in one line.
    """

    table: str
    cell: str
    seed: str
    key: str
    checksum: str
    reason: str


def refusals() -> dict[str, Refusal]:
    """The refused records, by their checksums.

    Raises:
        InvalidInput: the file has a different format.
    """
    listed = read_csv(FILE, lambda row: Refusal(**row), Refusal._fields)
    return {refusal.checksum: refusal for refusal in listed}


def refuse(added: Iterable[Refusal]) -> None:
    """Add records to the file. Processes take turns."""
    with writing(FILE), folder_lock(FILE.parent):
        listed = refusals() | {refusal.checksum: refusal for refusal in added}
        write_text(FILE, csv_text(Refusal._fields, sorted(listed.values())))
