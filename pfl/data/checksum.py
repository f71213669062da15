"""Checksums of files and folders."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pfl.core.errors import InvalidInput
from pfl.data.definition import RemoteFile
from pfl.data.folders import below


class WrongChecksum(InvalidInput):
    """A file does not match its known checksum."""


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


def verify(path: Path, file: RemoteFile, advice: str = "") -> None:
    """Raise `WrongChecksum`, with ``advice`` at the end, if ``path`` is not ``file``."""
    if (actual := digest(path, "md5")) != file.md5:
        accepted = f"md5 {file.md5}, as recorded in pfl{advice}"
        raise WrongChecksum("dataset", f"{path} of md5 {actual}", accepted)
