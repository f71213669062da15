"""Checksums of files and folders, and the record of those that no source publishes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pfl.data.definition import RemoteFile
from pfl.errors import InvalidInput
from pfl.files import write_json

RECORD = "checksums.json"
"""In a data set's folder of data/raw: name, bytes and sha256 of files whose source publishes no checksum."""


def files_below(path: Path) -> list[Path]:
    """The file itself, or all files below a folder in sorted order."""
    return sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]


def digest(path: Path, algorithm: str = "sha256") -> str:
    """The hexadecimal digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def describe(path: Path) -> dict[str, Any]:
    """Name, bytes and sha256 of a file; of a folder, the total and the digest of its listing with digests."""
    if path.is_dir():
        files = files_below(path)
        listing = "".join(f"{p.relative_to(path).as_posix()} {digest(p)}\n" for p in files)
        size, sha256 = sum(p.stat().st_size for p in files), hashlib.sha256(listing.encode()).hexdigest()
    else:
        size, sha256 = path.stat().st_size, digest(path)
    return {"name": path.name, "bytes": size, "sha256": sha256}


def stamps(path: Path) -> Iterator[tuple[str, int, int]]:
    """Path, size and modification time of each file: shows that files are unchanged without reading them."""
    for file in files_below(path.resolve()):
        stat = file.stat()
        yield str(file), stat.st_size, stat.st_mtime_ns


def verify(path: Path, file: RemoteFile, folder: Path) -> None:
    """Check ``path`` against the published checksum of ``file``, or else the one recorded in ``folder``.

    A file that is not recorded yet is added to the record.

    Raises:
        InvalidInput: the checksum is another, or the record is damaged.
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
        where = "published" if file.md5 else f"recorded in {folder / RECORD}"
        raise InvalidInput(
            "dataset", f"{path} of {algorithm} {actual}", f"{algorithm} {expected}, as {where}"
        )


def _recorded(record: Path) -> dict[str, Any]:
    try:
        return json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}
    except ValueError as error:
        accepted = f"JSON ({error}); delete it and the checksums are recorded anew"
        raise InvalidInput("file", str(record), accepted) from None
