"""The ledger: finished simulations, one JSON line each, looked up by their key.

A row is appended to `.sweeps/ledger/<table>.jsonl`, which git does not track and no checkout shortens. From
there it is copied to `results/ledger/<table>.jsonl`. Look-ups use all files of both folders, so that a cell
that two tables share is run once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path

from pfl.errors import InvalidInput, unknown_name
from pfl.files import append_lines, read_lines
from pfl.trials import Record, Sources
from pipeline.spec.files import table_names
from pipeline.store.workspace import SCRATCH, current_sources

LOCAL = SCRATCH / "ledger"
PUBLISHED = Path("results/ledger")


class Ledger:
    """The records of all tables, which are the rows of its files.

    Args:
        sources: the code that produces the rows to be appended.

    Attributes:
        damaged: places of lines that are not rows, for instance because the power failed during writing.
    """

    def __init__(self, sources: Sources):
        self.damaged: list[str] = []
        self._sources = sources
        self._successes: dict[str, list[Record]] = {}
        self._failed: dict[str, Record] = {}
        for path in (*sorted(PUBLISHED.glob("*.jsonl")), *sorted(LOCAL.glob("*.jsonl"))):
            for record in _read(path, self.damaged):
                self._take(record)

    def get(self, key: str, moments: Collection[str] = ()) -> Record | None:
        """The result with this key that has ``moments`` at every evaluation; never a failure."""
        return _first(self._successes, key, moments)

    def has(self, record: Record) -> bool:
        """Whether the ledger already has everything in ``record``, which is a success."""
        return self.get(record.key, record.metrics.always) is not None

    @property
    def successes(self) -> list[Record]:
        """All records with numbers, from any version of the code."""
        return [record for same in self._successes.values() for record in same]

    def find(self, key: str) -> Record | None:
        """The result with this key, or else the last failure; None if there is neither."""
        return self.get(key) or self._failed.get(key)

    def append(self, record: Record) -> Record:
        """Write a record, marked with the ledger's sources, to disk; return the record as written."""
        record = replace(record, sources=self._sources)
        append_lines(LOCAL / f"{record.table}.jsonl", [record.to_json()], wait=True)
        self._take(record)
        return record

    def _take(self, record: Record) -> None:
        if record.failed:
            self._failed[record.key] = record
        else:
            self._successes.setdefault(record.key, []).append(record)


def publish(table: str) -> None:
    """Copy a table's results to the file that git keeps, except those of an edited tree."""
    published = PUBLISHED / f"{table}.jsonl"
    known = {_identity(record) for record in _read(published) if not record.failed}
    fresh = {
        _identity(record): record
        for record in _read(LOCAL / f"{table}.jsonl")
        if not record.failed and not record.sources.dirty and _identity(record) not in known
    }
    if fresh:
        append_lines(published, [record.to_json() for record in fresh.values()])


def import_rows(file: Path, sources_of: Callable[[str], Sources] = current_sources) -> int:
    """Add rows that another machine computed; the number of rows that were new.

    Args:
        sources_of: gives the sources on this machine for a table.

    Raises:
        InvalidInput: a line is no row, or its key does not follow from its content; then none is added.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        raise InvalidInput("file", str(file), "a file of rows, as `pfl run-trials` writes it") from None
    records = [_checked(line, f"{file}:{number}") for number, line in enumerate(lines, start=1)]
    sources = {table: sources_of(table) for table in {record.table for record in records}}
    ledger = Ledger(current_sources())
    fresh = {_identity(record): record for record in records if not ledger.has(record)}
    for table in sorted({record.table for record in fresh.values()}):
        own = [_of_a_copy(record, sources[table]) for record in fresh.values() if record.table == table]
        append_lines(LOCAL / f"{table}.jsonl", [record.to_json() for record in own])
        publish(table)
    return len(fresh)


def _of_a_copy(record: Record, here: Sources) -> Record:
    """``record``, marked with the sources here if it comes from an untracked copy of them."""
    copy = record.sources.dirty and record.sources.sources == here.sources
    return replace(record, sources=here) if copy else record


def _checked(line: str, where: str) -> Record:
    """The record in ``line``."""
    refused = InvalidInput(where, "the line", "a row of a ledger with its metrics")
    try:
        record = Record.from_json(json.loads(line))
        expected = record.expected_key()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise refused from None
    if record.failed:
        raise refused
    if record.key != expected:
        raise InvalidInput(f"{where}: key", record.key, f"{expected}, which follows from the row's content")
    if record.table not in table_names():
        raise unknown_name(f"{where}: table", str(record.table), table_names())
    return record


def _identity(record: Record) -> tuple[object, ...]:
    """What distinguishes two results: a key may have one result and another with further moments."""
    return record.key, record.metrics.always


def _first(records: dict[str, list[Record]], key: str, moments: Collection[str]) -> Record | None:
    return next((record for record in records.get(key, ()) if not record.metrics.lacks(moments)), None)


def _read(path: Path, damaged: list[str] | None = None) -> Iterator[Record]:
    for row in read_lines(path, damaged):
        try:
            yield Record.from_json(row)
        except ValueError:
            if damaged is not None:
                damaged.append(f"{path}: key {row['key']}")
