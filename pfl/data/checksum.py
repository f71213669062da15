"""Checksums of files and folders, and a record of checksums for files with no known one."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pfl.core.errors import InvalidInput
from pfl.core.files import write_json
from pfl.data.definition import RemoteFile
from pfl.data.folders import below

RECORD = "checksums.json"
"""Record in a data set's folder: name, bytes and SHA-256 of files without a known checksum."""


class WrongChecksum(InvalidInput):
    """A file does not match its known or recorded checksum."""


def digest(path: Path, algorithm: str = "sha256") -> str:
    """The hexadecimal digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def describe(path: Path) -> dict[str, Any]:
    """Name, bytes and SHA-256 of a file; for a folder, total bytes and a digest of its files' digests."""
    if path.is_dir():
        names = sorted(below(path)[0], key=lambda name: name.split(b"/"))
        files = [path / os.fsdecode(name) for name in names]
        listing = b"".join(
            b"%b %b\n" % (name, digest(file).encode()) for name, file in zip(names, files, strict=True)
        )
        size, sha256 = sum(file.stat().st_size for file in files), hashlib.sha256(listing).hexdigest()
    else:
        size, sha256 = path.stat().st_size, digest(path)
    return {"name": path.name, "bytes": size, "sha256": sha256}


def stamps(path: Path) -> Iterator[tuple[str, int, int, int]]:
    """Path, size and times of each file, to detect changes without reading the files.

    The change time of the inode reveals a file that was replaced by another of the same size and modification
    time, as by `cp -p` or `rsync -a`.
    """
    path = path.resolve()
    files = [path / os.fsdecode(name) for name in sorted(below(path)[0])] if path.is_dir() else [path]
    for file in files:
        stat = file.stat()
        yield str(file), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def verify(path: Path, file: RemoteFile, folder: Path) -> None:
    """Check ``path`` against the known checksum of ``file`` or, without one, the record in ``folder``.

    A file without an entry is added to the record.

    Raises:
        WrongChecksum: the checksum differs.
        InvalidInput: the record is damaged or cannot be written.
    """
    if file.md5 is not None:
        algorithm, expected, actual = "md5", file.md5, digest(path, "md5")
    else:
        algorithm, described = "sha256", describe(path) | {"name": file.name}
        record = folder / RECORD
        recorded = _recorded(record)
        if file.name not in recorded:
            write_json(record, recorded | {file.name: described})
            return
        expected, actual = recorded[file.name]["sha256"], described["sha256"]
    if actual != expected:
        where = "pfl" if file.md5 else folder / RECORD
        accepted = f"{algorithm} {expected}, as recorded in {where}"
        raise WrongChecksum("dataset", f"{path} of {algorithm} {actual}", accepted)


def _recorded(record: Path) -> dict[str, Any]:
    try:
        return json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}
    except ValueError as error:
        accepted = f"JSON ({error}); if it is deleted, the checksums are recorded again"
        raise InvalidInput("file", str(record), accepted) from None
