"""One interface to the files in folders, zips and tars."""

from __future__ import annotations

import errno
import gzip
import lzma
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from pfl.errors import InvalidInput

DAMAGED = (
    zipfile.BadZipFile,
    NotImplementedError,
    tarfile.ReadError,
    gzip.BadGzipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
)
"""Exceptions that the standard library raises for a truncated or damaged archive."""

_ZIPS = (".zip", ".npz")


class Tree:
    """The files below a folder or in a zip, by their names with forward slashes.

    Attributes:
        path: the folder or archive given by the user.
        names: sorted names of all files.
    """

    def __init__(self, path: Path, root: Path | zipfile.ZipFile):
        self.path = path
        self._root = root
        if isinstance(root, Path):
            names = [p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file()]
        else:
            names = [name for name in root.namelist() if not name.endswith("/")]
        self.names = sorted(names)

    def open(self, name: str) -> IO[bytes]:
        """Open the file of that name for reading.

        Raises:
            InvalidInput: there is no such file.
        """
        try:
            return (self._root / name).open("rb") if isinstance(self._root, Path) else self._root.open(name)
        except (KeyError, FileNotFoundError):
            raise InvalidInput("dataset", str(self.path), f"a folder or archive with {name}") from None

    def read(self, name: str) -> bytes:
        with self.open(name) as file:
            return file.read()


@contextmanager
def open_tree(path: Path) -> Iterator[Tree]:
    """The files of a folder, a zip or a (compressed) tar. A tar is unpacked to a temporary folder.

    Files that end in .zip or .npz are read as a zip, all others as a tar.

    Raises:
        InvalidInput: the archive is truncated or damaged, or a member's path leaves the folder.
    """
    try:
        if path.is_dir():
            yield Tree(path, path)
        elif path.suffix not in _ZIPS:
            with tempfile.TemporaryDirectory(prefix="pfl-") as folder:
                try:
                    _unpack(path, Path(folder))
                except OSError as error:
                    if error.errno == errno.ENOSPC:
                        raise InvalidInput("TMPDIR", folder, f"a folder with room for {path}") from error
                    raise
                yield Tree(path, Path(folder))
        else:
            with zipfile.ZipFile(path) as archive:
                for name in archive.namelist():
                    _check_inside(path, name)
                yield Tree(path, archive)
    except DAMAGED as error:
        cause = str(error).partition(":\n")[0] or "it is truncated"  # tarfile adds lines
        raise InvalidInput("dataset", str(path), f"a complete zip or tar ({cause})") from error


def check_archive(path: Path) -> None:
    """Raise `InvalidInput` if ``path`` is a zip or npz with an unreadable directory."""
    if path.suffix in _ZIPS and path.is_file():
        with open_tree(path):
            pass


def _unpack(path: Path, folder: Path) -> None:
    """Write a tar's regular files below ``folder``; links and devices are left out."""
    with tarfile.open(path) as archive:
        for member in archive:
            _check_inside(path, member.name)
            content = archive.extractfile(member) if member.isfile() else None
            if content is not None:
                target = folder / member.name
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("wb") as file:
                    shutil.copyfileobj(content, file)
        _check_end(archive)


def _check_end(archive: tarfile.TarFile) -> None:
    """Raise `tarfile.ReadError` if anything but zeros follows the members.

    tarfile regards every bad header except the first as the end of the archive.
    """
    file = archive.fileobj
    assert file is not None
    file.seek(archive.offset)
    rest = iter(lambda: file.read(1 << 20), b"")  # a compressed file ends with its checksum
    zeros = [not content.strip(b"\0") for content in rest]
    if not zeros or not all(zeros):
        raise tarfile.ReadError("the list of its files breaks off")


def _check_inside(path: Path, member: str) -> None:
    inside = PurePosixPath(member.replace("\\", "/"))
    if inside.is_absolute() or ".." in inside.parts:
        raise InvalidInput("dataset", str(path), f"an archive whose paths stay inside it, not {member!r}")
