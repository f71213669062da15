"""The ledger: finished simulations, a JSON line each, found again by their key.

A row is appended to `.sweeps/ledger/<table>.jsonl`, which git does not know and no checkout shortens, and
from there copied to `results/ledger/<table>.jsonl`. Look-ups use all files of both folders, so that a cell
that two tables share is run once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from pfl.errors import InvalidInput, unknown_name
from pfl.files import append_lines, read_lines
from pfl.trials import trial_key
from pipeline.spec.evaluation import evaluated, lacks
from pipeline.spec.table import table_names
from pipeline.store.workspace import SCRATCH, Sources

LOCAL = SCRATCH / "ledger"
PUBLISHED = Path("results/ledger")

Row = dict[str, Any]


class Ledger:
    """The rows of all tables.

    Args:
        sources: the code that rows which are appended are of.

    Attributes:
        damaged: where a line is no row, for instance because the power failed while it was written.
    """

    def __init__(self, sources: Sources):
        self.damaged: list[str] = []
        self._sources = sources
        self._rows: dict[str, list[Row]] = {}
        self._stopped: dict[str, list[Row]] = {}
        self._failed: dict[str, Row] = {}
        for path in (*sorted(PUBLISHED.glob("*.jsonl")), *sorted(LOCAL.glob("*.jsonl"))):
            for row in _read(path, self.damaged):
                self._take(row)

    def get(self, key: str, moments: Collection[str] = ()) -> Row | None:
        """The result with this key that has ``moments`` at every evaluation; never a row that holds an error,
        or a trial that was stopped early."""
        return _first(self._rows, key, moments)

    def has(self, row: Row) -> bool:
        """Whether ``row`` would add nothing; a result adds to a trial that was stopped early."""
        key, moments = row["key"], evaluated(row)
        return self.get(key, moments) is not None or (_is_stopped(row) and bool(self.stopped(key, moments)))

    def speed(self, model: str) -> float | None:
        """Most training samples a second of any simulation of a network; None: there are none.

        The most, since what else a machine had to do only slows it down.
        """
        rows = [row for same in self._rows.values() for row in same if row["config"]["model"] == model]
        return max((row["measured"]["samples_per_second"] for row in rows), default=None)

    @property
    def rows(self) -> list[Row]:
        """All results, of whichever code."""
        return [row for same in self._rows.values() for row in same]

    def stopped(self, key: str, moments: Collection[str] = ()) -> Row | None:
        """The row of a search trial that was stopped early, likewise."""
        return _first(self._stopped, key, moments)

    def find(self, key: str) -> Row | None:
        """Whatever there is: the result, or else a trial that was stopped early, or else the last failure."""
        return self.get(key) or self.stopped(key) or self._failed.get(key)

    def append(self, row: Row) -> Row:
        """Add a row, on disk before this returns, and give it back stamped with the sources."""
        row = self._sources.stamp(row)
        append_lines(LOCAL / f"{row['table']}.jsonl", [row], wait=True)
        self._take(row)
        return row

    def _take(self, row: Row) -> None:
        if "error" in row:
            self._failed[row["key"]] = row
        else:
            rows = self._stopped if _is_stopped(row) else self._rows
            rows.setdefault(row["key"], []).append(row)


def publish(table: str) -> None:
    """Copy a table's results to the file that git keeps, except those of an edited tree."""
    published = PUBLISHED / f"{table}.jsonl"
    known = {_identity(row) for row in _read(published)}
    fresh = {}
    for row in _read(LOCAL / f"{table}.jsonl"):
        if not row["dirty"] and "error" not in row and _identity(row) not in known:
            fresh[_identity(row)] = row
    if fresh:
        append_lines(published, fresh.values())


def import_rows(file: Path, sources_of: Callable[[str], Sources] = Sources.current) -> int:
    """Add rows that another machine computed; the number of rows that were new.

    Args:
        sources_of: those here, for a table.

    Raises:
        InvalidInput: a line is no row, or its key does not follow from its content; then none is added.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        raise InvalidInput("file", str(file), "a file of rows, as `pfl run --trials` writes it") from None
    rows = [_checked(line, f"{file}:{number}") for number, line in enumerate(lines, start=1)]
    sources = {table: sources_of(table) for table in {row["table"] for row in rows}}
    ledger = Ledger(Sources.current())
    fresh = {_identity(row): row for row in rows if not ledger.has(row)}
    for table in sorted({row["table"] for row in fresh.values()}):
        own = [row for row in fresh.values() if row["table"] == table]
        append_lines(LOCAL / f"{table}.jsonl", [_of_a_copy(row, sources[table]) for row in own])
        publish(table)
    return len(fresh)


def _of_a_copy(row: Row, here: Sources) -> Row:
    """``row``, stamped with the sources here if it is of a copy of them that git does not know."""
    return here.stamp(row) if row["dirty"] and row["sources"] == here.sources else row


def _checked(line: str, where: str) -> Row:
    """The row in ``line``."""
    try:
        row: Row = json.loads(line)
        key = trial_key(
            row["config"], row["data_checksum"], row["partition_checksum"], row["seed"], row["behaviour"]
        )
        given, table = row["key"], str(row["table"])
        row["dirty"], row["sources"], row["commit"]
        row["metrics"]["moments"], row["metrics"]["rounds"], row["measured"]["samples_per_second"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise InvalidInput(where, "the line", "a row of a ledger with its metrics") from None
    if given != key:
        raise InvalidInput(f"{where}: key", given, f"{key}, which follows from the row's content")
    if table not in table_names():
        raise unknown_name(f"{where}: table", table, table_names())
    return row


def _is_stopped(row: Row) -> bool:
    """Whether the trial was stopped early, so that its row is no result."""
    return "stopped_at" in row.get("metrics", {})


def _identity(row: Row) -> tuple[object, ...]:
    """What two results differ in: a key may have a stopped trial, a result, and one with further moments."""
    return row["key"], _is_stopped(row), evaluated(row)


def _first(rows: dict[str, list[Row]], key: str, moments: Collection[str]) -> Row | None:
    return next((row for row in rows.get(key, ()) if not lacks(row, moments)), None)


def _read(path: Path, damaged: list[str] | None = None) -> Iterator[Row]:
    for row in read_lines(path, damaged):
        if {"dirty", "sources"} <= row.keys() and ("error" in row or isinstance(row.get("metrics"), dict)):
            yield row
        elif damaged is not None:
            damaged.append(f"{path}: key {row['key']}")
