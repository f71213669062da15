"""Import of records from another machine or an earlier version into the ledger."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from pfl.core.errors import InvalidInput, check_names
from pfl.core.files import FileLine, append_lines, read_lines
from pfl.run.trials import Record, checksum_of, split_checksum
from pipeline.spec.paths import run_names
from pipeline.store.ledger import LOCAL, Ledger, identity_of, publish
from pipeline.store.records import parse_record
from pipeline.store.refusals import FILE
from pipeline.store.workspace import current_sources

log = logging.getLogger(__name__)


def import_records(files: Sequence[Path]) -> int:
    """Add records of another machine, or of a version that wrote no checksums; return the number of new
    records.

    Records of failed trials and refused ones are ignored, and so are incomplete lines and intact records of
    versions with other keys.

    Raises:
        InvalidInput: in one of the files, a line is not a record or is damaged, or its key does not match its
            content. In that case, no record of any file is added.
    """
    sources_here = cache(current_sources)
    ledger = Ledger(current_sources())
    tables = set[str]()
    fresh: dict[object, tuple[str, bytes]] = {}
    for file in files:
        checked = [_checked(line, f"{file}:{line.number}") for line in _lines(file)]
        records = [record for record in checked if record]
        successes = [record for record in records if not record.failed]
        accepted = [record for record in successes if not ledger.refuses(record)]
        tables.update(record.table for record in successes)
        for record in accepted:
            if not ledger.has(record):
                here = sources_here(record.table)
                # An uncommitted copy of these sources counts as these sources.
                copied = record.sources.dirty and record.sources.sources == here.sources
                own = replace(record, sources=here) if copied else record
                fresh[identity_of(record)] = record.table, own.to_line()
        if others := checked.count(None):
            log.warning("%s: ignored records of other versions: %d", file, others)
        if failures := len(records) - len(successes):
            log.warning("%s: ignored records of failed trials: %d", file, failures)
        if refused := len(successes) - len(accepted):
            log.warning("%s: ignored records that are refused in %s: %d", file, FILE, refused)
    for table in sorted(tables):
        append_lines(LOCAL / f"{table}.jsonl", [line for name, line in fresh.values() if name == table])
        publish(table)
    return len(fresh)


def _lines(file: Path) -> list[FileLine]:
    """The lines of a file without incomplete ones, which an interrupted run or a copy during a run leaves."""
    other = InvalidInput("file", str(file), "a file of records, as `pfl run-trials` writes it")
    try:
        with file.open("rb"):
            lines = list(read_lines(file))
    except OSError:
        raise other from None
    if lines and not lines[0].content.startswith(b"{"):
        raise other
    complete = [line for line in lines if _is_complete(line)]
    if incomplete := len(lines) - len(complete):
        log.warning("%s: ignored incomplete lines: %d", file, incomplete)
    return complete


def _is_complete(line: FileLine) -> bool:
    try:
        json.loads(line.content)
    except (ValueError, RecursionError):
        return False
    return True


def _checked(line: FileLine, where: str) -> Record | None:
    """The record in ``line``, which may lack a checksum; None if it is intact, but this version of the code
    does not derive its key."""
    content, checksum = split_checksum(line.content)
    if checksum not in (None, wanted := checksum_of(content)):
        raise InvalidInput(
            f"{where}: checksum", str(checksum), f"{wanted}, the checksum of the record's content"
        )
    try:
        record = parse_record(content)
        expected = record.expected_key()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if checksum:
            return None
        why = f": {error}" if isinstance(error, ValueError) else ""
        raise InvalidInput(where, "the line", f"a record of the ledger{why}") from None
    if record.key != expected:
        if checksum:
            return None
        raise InvalidInput(f"{where}: key", record.key, f"{expected}, the key of the record's content")
    check_names(f"{where}: table", [record.table], run_names())
    return record
