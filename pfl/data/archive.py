"""A common interface to the files in folders, zips and tars."""

from __future__ import annotations

import errno
import gzip
import lzma
import os
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path, PurePosixPath

from pfl.core.errors import InvalidInput
from pfl.core.files import remove_abandoned, scratch_folder
from pfl.data.folders import as_text, below

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

HARMLESS = 1 << 30
MOST_GROWTH = 200
"""An archive that unpacks to more than `HARMLESS` bytes may not grow by more than this factor.

Images hardly compress, and plain bitmaps compress 10- to 100-fold; a zip bomb expands 1,000-fold.
"""

_ZIPS = (".zip", ".npz")
UNPACKED = "pfl-unpacked-"
"""Prefix of temporary folders."""
_LINK = "a symbolic link (pack the files that links lead to, as tar --dereference does)"
_ENCRYPTED, _UTF8 = 0x1, 0x800  # bits of a zip's flags


class Tree:
    """The files below a folder or in a zip, by name, with forward slashes.

    Attributes:
        path: the folder or archive given by the user.
        names: sorted names of all files.
        folders: sorted names of all folders, empty ones included.
        notes: remarks about the archive, one line each.
    """

    def __init__(self, path: Path, root: Path | zipfile.ZipFile):
        self.path = path
        self.notes: list[str] = []
        self._files: Mapping[str, Path | zipfile.ZipInfo]
        if isinstance(root, Path):
            self._zip = None
            files, folders = below(root)
            self._files = {as_text(path, name): root / os.fsdecode(name) for name in files}
            self.folders = sorted(as_text(path, name) for name in folders)
        else:
            self._zip = root
            members = self._members(root)
            self._files = {name: info for name, info in members.items() if not info.is_dir()}
            above = {str(parent) for name in self._files for parent in PurePosixPath(name).parents}
            self.folders = sorted((above | members.keys()) - self._files.keys() - {"."})
        self.names = sorted(self._files)

    def _members(self, archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
        """The members of a zip by name."""
        members: dict[str, zipfile.ZipInfo] = {}
        guessed = []
        for info in archive.infolist():
            name = info.filename
            if not info.flag_bits & _UTF8 and not name.isascii():
                with suppress(UnicodeError):
                    name = name.encode("cp437").decode("utf-8")  # many programs do not set the flag
                guessed.append(name)
            _check_inside(self.path, name)
            if info.flag_bits & _ENCRYPTED:
                raise InvalidInput("dataset", str(self.path), f"a zip without a password, not with {name!r}")
            if stat.S_ISLNK(info.external_attr >> 16):
                raise _no_file(self.path, name, _LINK)
            name = str(PurePosixPath(name))
            if name in members and not (info.is_dir() and members[name].is_dir()):
                raise _twice(self.path, name)
            members[name] = info
        _check_growth(self.path, sum(info.file_size for info in members.values()))
        if guessed:
            first = repr(guessed[0])
            self.notes.append(f"file names of unknown encoding read as UTF-8 or code page 437, as {first}")
        return members

    def read(self, name: str) -> bytes:
        """The content of the file called ``name``.

        Raises:
            InvalidInput: there is no such file, or its part of the archive is damaged.
        """
        file = self._files.get(name)
        with suppress(FileNotFoundError), undamaged(f"{self.path}: {name}"):
            if isinstance(file, Path):
                return file.read_bytes()
            if self._zip and file:
                return self._zip.read(file)
        raise InvalidInput("dataset", str(self.path), f"a folder or archive with {name}")


@contextmanager
def undamaged(file: str) -> Iterator[None]:
    """A context that turns an error of reading a damaged archive or its ``file`` into an `InvalidInput`."""
    try:
        yield
    except DAMAGED as error:
        cause = str(error).partition(":\n")[0] or "it is truncated"  # tarfile adds lines
        raise InvalidInput("dataset", file, f"a complete zip or tar ({cause})") from error


@contextmanager
def open_tree(path: Path) -> Iterator[Tree]:
    """The files of a folder, a zip or a (compressed) tar. A tar is unpacked to a temporary folder.

    Files that end in .zip or .npz are read as a zip, all others as a tar.

    Raises:
        InvalidInput: the archive is truncated, damaged or encrypted, or unpacks to far more than its size; or
            a member is neither a file nor a folder, occurs twice, or has a path that leaves the folder.
    """
    with ExitStack() as opened:
        if path.is_dir():
            tree = Tree(path, path)
        elif path.suffix not in _ZIPS:
            parent = Path(tempfile.gettempdir())
            remove_abandoned(parent, UNPACKED)
            folder = opened.enter_context(scratch_folder(parent, UNPACKED)) / "files"
            try:
                with undamaged(str(path)):
                    _unpack(path, folder)
            except OSError as error:
                if error.errno == errno.ENOSPC:
                    raise InvalidInput("TMPDIR", str(parent), f"a folder with room for {path}") from error
                raise
            tree = Tree(path, folder)
        else:
            with undamaged(str(path)):
                tree = Tree(path, opened.enter_context(zipfile.ZipFile(path)))
        yield tree


def check_archive(path: Path) -> None:
    """Raise `InvalidInput` if ``path`` is a zip or npz that `open_tree` rejects."""
    if path.suffix in _ZIPS and path.is_file():
        with open_tree(path):
            pass


def _unpack(path: Path, folder: Path) -> None:
    """Unpack a tar's files and folders into ``folder``; hard links are kept."""
    total = 0
    written: set[Path] = set()
    folder.mkdir()
    with tarfile.open(path, encoding="utf-8", errors="surrogateescape") as archive:
        for member in archive:
            name = as_text(path, member.name.encode("utf-8", "surrogateescape"))
            _check_inside(path, name)
            target = folder / os.fsdecode(name.encode())
            if target in written:
                raise _twice(path, name)
            if member.isdir():
                target.mkdir(parents=True, exist_ok=True)
                continue
            if not member.isfile() and not member.islnk():
                raise _no_file(path, name, _LINK if member.issym() else "a device or pipe")
            target.parent.mkdir(parents=True, exist_ok=True)
            written.add(target)
            if member.islnk():
                first = folder / os.fsdecode(member.linkname.encode("utf-8", "surrogateescape"))
                if first not in written:
                    raise _no_file(path, name, "a link to a file that does not precede it")
                os.link(first, target)
                continue
            total += member.size
            _check_growth(path, total)
            content = archive.extractfile(member)
            assert content is not None
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
    rest = iter(lambda: file.read(1 << 20), b"")  # to the end, where a compressed file has its checksum
    zeros = [not content.strip(b"\0") for content in rest]
    if not zeros or not all(zeros):
        raise tarfile.ReadError("the archive ends prematurely")


def _check_inside(path: Path, member: str) -> None:
    inside = PurePosixPath(member.replace("\\", "/"))
    if inside.is_absolute() or ".." in inside.parts:
        raise InvalidInput("dataset", str(path), f"an archive whose paths stay inside it, not {member!r}")


def _check_growth(path: Path, unpacked: int) -> None:
    packed = path.stat().st_size
    if unpacked > max(HARMLESS, MOST_GROWTH * packed):
        accepted = (
            f"an archive that unpacks to at most {MOST_GROWTH} times its {packed / 1e6:.1f} MB, "
            f"not to {unpacked / 1e9:.1f} GB (unpack it yourself if this is intended)"
        )
        raise InvalidInput("dataset", str(path), accepted)


def _no_file(path: Path, name: str, kind: str) -> InvalidInput:
    return InvalidInput("dataset", str(path), f"an archive of files and folders; {name!r} is {kind}")


def _twice(path: Path, name: str) -> InvalidInput:
    return InvalidInput("dataset", str(path), f"an archive with one file of each name; {name!r} occurs twice")
