"""The files of the ledger, record by record; the numbers of a record are decoded lazily."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from pfl.core.files import read_lines
from pfl.run.sources import Plugin
from pfl.run.trials import Record, checked, checksum_of, split_checksum

RECORDS = "rows.jsonl"
"""The records of a sweep's results, in the folder of the table."""

OnDamage = Callable[["Position", str], None]
"""Called with the position of a damaged line and the reason."""


class RecordHead(msgspec.Struct, frozen=True, gc=False):
    """A record without its numbers, which are the bulk of it; the fields are those of `Record`."""

    key: str
    table: str
    cell: str
    phase: str
    seed: int
    config: dict[str, Any]
    dataset: str
    partition: str
    data_checksum: str
    partition_checksum: str
    behaviour: str
    plugins: tuple[Plugin, ...]
    commit: str
    dirty: bool
    until: int | None = None
    error: str | None = None


class Position(NamedTuple):
    """Position of a record in a file, with its length in bytes."""

    path: Path
    line: int
    offset: int
    length: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"

    def read(self) -> bytes:
        """The line that is now at this position."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            return file.read(self.length)

    def record(self) -> Record:
        """The record at this position.

        Raises:
            ValueError: it is damaged, or an earlier version of the code derived its key.
        """
        try:
            record = read_record(self.read())
            expected = record.expected_key()
        except (OSError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a record ({error!r})") from None
        if record.key != expected:
            raise ValueError(f"of another version: its content has the key {expected}")
        return record


def read_record(line: bytes) -> Record:
    """Parse a record that `Record.to_line` wrote.

    Raises:
        ValueError: the line is not a record, or is damaged; the message says which.
    """
    return parse_record(checked(line))


def parse_record(content: bytes) -> Record:
    """Parse a record without its checksum.

    Raises:
        ValueError: the line is not a record.
    """
    try:
        values = _object(content)
        own = {"sources": values, "result": None if "error" in values else values}
        record = msgspec.convert({**values, **own}, Record)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"no record ({error})") from None
    if not record.failed and all(client.accuracy is None for client in record.metrics.per_client):
        raise ValueError("no client has an accuracy")
    return record


def read_heads(
    path: Path, on_damage: OnDamage = lambda *_: None
) -> Iterator[tuple[Position, RecordHead, str | None]]:
    """The records of a file with a correct checksum or none, with their checksums."""
    for line in read_lines(path):
        position = Position(path, line.number, line.offset, len(line.content))
        content, checksum = split_checksum(line.content)
        if checksum not in (None, checksum_of(content)):
            on_damage(position, "its checksum is not that of its content")
            continue
        try:
            yield position, decode(content), checksum
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            on_damage(position, f"not a record ({error})")


def key_in(line: bytes) -> str:
    """The key at the beginning of a line, which may be damaged."""
    return line.removeprefix(b'{"key":"')[:64].decode(errors="replace")


decode = msgspec.json.Decoder(RecordHead).decode
_object = msgspec.json.Decoder(dict[str, Any]).decode
