"""The ledger: one record, a JSON line, per finished run, looked up by its key.

A record is appended to `.sweeps/ledger/<table>.jsonl`, which git does not track and no checkout truncates.
From there it is copied to `results/ledger/<table>.jsonl`. Look-ups use all files of both folders, so that a
cell that two tables share is run once. Records that `dvc pull` fetched from another machine
(`results/*/rows.jsonl`) are first copied to `.sweeps/ledger/`, because the next sweep replaces that file.

When the ledger is opened, every record is compared with its checksum and its position is noted. A record is
decoded, and its key compared with its content, when it is requested. A damaged line is reported and ignored.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from pfl.core.files import append_lines, folder_lock, writing
from pfl.run.sources import Sources
from pfl.run.trials import Record, checksum_of
from pipeline.spec.axes import NAME
from pipeline.store.records import RECORDS, Position, RecordHead, decode, key_in, read_heads
from pipeline.store.refusals import refusals
from pipeline.store.workspace import SCRATCH

log = logging.getLogger(__name__)

LOCAL = SCRATCH / "ledger"
PUBLISHED = Path("results/ledger")
RESULTS = Path("results")


class Damage(NamedTuple):
    """A damaged line.

    Attributes:
        key: the key in the line, if it has one.
    """

    position: Position
    reason: str
    key: str

    def __str__(self) -> str:
        return f"{self.position}: {self.reason} (key {self.key})"


class Ledger:
    """The records of all tables.

    Args:
        sources: the code that produces the appended records.

    Attributes:
        damaged: the damaged lines; each is also logged.
        refused: reasons by key why records with numbers are never used (`pipeline.store.refusals`).
    """

    def __init__(self, sources: Sources):
        self.damaged: list[Damage] = []
        self.refused: dict[str, str] = {}
        self._refused: dict[str, list[Position]] = {}
        self.sources = sources
        self._successes: dict[str, list[Position | Record]] = {}
        self._failed: dict[str, Position | Record] = {}
        refused, checksums, lacking = refusals(), set[str](), list[Position]()
        pulled, adopted = sorted(RESULTS.glob(f"*/{RECORDS}")), dict[str, list[Position]]()
        for path in (*sorted(PUBLISHED.glob("*.jsonl")), *sorted(LOCAL.glob("*.jsonl")), *pulled):
            for position, head, checksum in read_heads(path, self._report):
                if path in pulled and (checksum in checksums or head.error is not None):
                    continue
                if path in pulled and not re.fullmatch(NAME, head.table):  # it names the file to copy to
                    self._report(position, f"{head.table!r} is not the name of a table")
                    continue
                if checksum is None:
                    lacking.append(position)
                elif checksum in refused:
                    self.refused[head.key] = refused[checksum].reason
                    self._refused.setdefault(head.key, []).append(position)
                elif head.error is not None:
                    self._failed[head.key] = position
                else:
                    self._successes.setdefault(head.key, []).append(position)
                    if path in pulled:
                        adopted.setdefault(head.table, []).append(position)
                if checksum:
                    checksums.add(checksum)
        for table, positions in adopted.items():
            append_lines(LOCAL / f"{table}.jsonl", [position.read() for position in positions])
        missing = Counter(
            position.path for position in lacking if checksum_of(position.read()) not in checksums
        )
        for path, count in missing.items():
            adds = f"`pfl ledger import {path}` checks and adds them"
            log.warning("ledger: %s: records without a checksum, not used: %d; %s", path, count, adds)

    def get(self, key: str, accepts: Callable[[Record], bool] = lambda _: True) -> Record | None:
        """The first successful record with this key that ``accepts`` returns True for."""
        records = filter(None, map(self._record, tuple(self._successes.get(key, ()))))
        return next(filter(accepts, records), None)

    def has(self, record: Record) -> bool:
        """Whether the ledger already has everything in the successful ``record``."""
        always = record.metrics.always
        return self.get(record.key, lambda known: known.metrics.always >= always) is not None

    def refuses(self, record: Record) -> bool:
        """Whether ``record`` is refused, or differs from a refused record only in its sources."""
        others = filter(None, map(self._record, self._refused.get(record.key, ())))
        return any(replace(other, sources=record.sources) == record for other in others)

    def find(self, key: str) -> Record | None:
        """The successful record with this key, or else the last failure; None if there is neither."""
        failed = self._failed.get(key)
        return self.get(key) or (self._record(failed) if failed else None)

    def successes(self, table: str) -> Iterator[Record]:
        """A table's successful records, from any version of the code."""
        return filter(None, map(self._record, self._entries(table)))

    def heads(self, table: str) -> Iterator[RecordHead]:
        """A table's records without their numbers."""
        for entry in self._entries(table):
            with suppress(OSError, ValueError):  # another process has replaced the file
                yield decode(_line(entry))

    def line(self, record: Record) -> bytes:
        """The line of a record that this ledger has returned."""
        entries = [self._failed[record.key]] if record.failed else self._successes[record.key]
        # Another process may have replaced the file that the record was read from.
        return _line(next((entry for entry in entries if self._record(entry) == record), record))

    def append(self, record: Record) -> Record:
        """Write a record, marked with the ledger's sources, to disk; return the record as written."""
        record = replace(record, sources=self.sources)
        append_lines(LOCAL / f"{record.table}.jsonl", [record.to_line()], wait=True)
        if record.failed:
            self._failed[record.key] = record
        else:
            self._successes.setdefault(record.key, []).append(record)
        return record

    def _entries(self, table: str) -> list[Position | Record]:
        """The entries of the table's successful records."""
        return [
            entry
            for entries in self._successes.values()
            for entry in entries
            if (entry.table if isinstance(entry, Record) else entry.path.stem) == table
        ]

    def _record(self, entry: Position | Record) -> Record | None:
        """The record of an entry; None if its line is damaged."""
        if isinstance(entry, Record):
            return entry
        try:
            return entry.record()
        except ValueError as error:
            self._report(entry, str(error))
            return None

    def _report(self, position: Position, reason: str) -> None:
        line = b""
        with suppress(OSError):  # another process has removed the file
            line = position.read()
        damage = Damage(position, reason, key_in(line))
        if damage not in self.damaged:
            self.damaged.append(damage)
            log.warning("ledger: %s; ignored; its trial runs again if it is needed", damage)


def _line(entry: Position | Record) -> bytes:
    return entry.to_line() if isinstance(entry, Record) else entry.read()


def publish(table: str) -> None:
    """Copy a table's records to the file in git, except those of failed trials or of an edited checkout, and
    refused ones. Processes take turns.

    Raises:
        InvalidInput: the file cannot be written.
    """
    with writing(PUBLISHED), folder_lock(PUBLISHED):
        published = PUBLISHED / f"{table}.jsonl"
        there: dict[str, list[Position]] = {}
        checksums: set[str | None] = {None, *refusals()}
        for position, head, checksum in read_heads(published):
            if checksum not in checksums:
                checksums.add(checksum)
                there.setdefault(head.key, []).append(position)
        fresh: dict[object, bytes] = {}
        for position, head, checksum in read_heads(LOCAL / f"{table}.jsonl"):
            if head.error is not None or head.dirty or checksum in checksums:
                continue
            with suppress(ValueError):
                identity = identity_of(position.record())
                if identity not in [identity_of(other.record()) for other in there.get(head.key, ())]:
                    fresh[identity] = position.read()
        if fresh:
            append_lines(published, fresh.values())


def identity_of(record: Record) -> tuple[object, ...]:
    """Identity of a record: one key can have several records, some with more moments than others."""
    return record.key, record.metrics.always
