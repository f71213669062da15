"""Folders, zips and tars, read alike: names and the bytes behind them."""

from __future__ import annotations

import errno
import gzip
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

DAMAGED = (zipfile.BadZipFile, tarfile.ReadError, gzip.BadGzipFile, zlib.error, EOFError)
"""What the standard library raises on a truncated or damaged archive."""


class Tree:
    """The files below a folder or in a zip, by their names with forward slashes.

    Attributes:
        path: the folder or archive that the user named.
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
        """The file of that name, to be read.

        Raises:
            InvalidInput: there is none.
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
    """The files of a folder, a zip or a (compressed) tar. A tar is unpacked to a temporary folder meanwhile.

    Raises:
        InvalidInput: the archive is truncated or damaged, or a member's path leaves the folder.
    """
    try:
        if path.is_dir():
            yield Tree(path, path)
        elif tarfile.is_tarfile(path):
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
        raise InvalidInput(
            "dataset", str(path), f"a complete zip or tar ({error or 'it is truncated'})"
        ) from error


def check_archive(path: Path) -> None:
    """Raise `InvalidInput` if ``path`` is a zip, or an npz, whose directory cannot be read."""
    if path.suffix in (".zip", ".npz") and path.is_file():
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


def _check_inside(path: Path, member: str) -> None:
    inside = PurePosixPath(member.replace("\\", "/"))
    if inside.is_absolute() or ".." in inside.parts:
        raise InvalidInput("dataset", str(path), f"an archive whose paths stay inside it, not {member!r}")
