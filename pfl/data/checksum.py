"""Checksums of files and folders, and the record of those that no source publishes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any


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
    """Path, bytes and time of change of each file: tells "unchanged" without reading any."""
    for file in files_below(path.resolve()):
        stat = file.stat()
        yield str(file), stat.st_size, stat.st_mtime_ns
