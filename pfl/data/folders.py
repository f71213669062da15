"""The files below a folder. Names are bytes, so that they are the same in every locale."""

from __future__ import annotations

import os
from pathlib import Path

from pfl.core.errors import InvalidInput


def below(root: Path) -> tuple[list[bytes], list[bytes]]:
    """The names of all files and of all folders below ``root``, with forward slashes; links are followed.

    Raises:
        InvalidInput: a link is broken or leads to a folder that contains it, or there is a device, pipe or
            socket.
        OSError: a folder cannot be read.
    """
    files, folders = [], []
    around = {root: frozenset({root.resolve()})}  # for each folder, the real paths of it and its parents
    for text, subfolders, names in os.walk(root, onerror=_raise, followlinks=True):
        place = Path(text)
        for folder in (place / name for name in subfolders):
            real = folder.resolve()
            if real in around[place]:
                raise _refused(root, folder, "a link to a folder around it")
            around[folder] = around[place] | {real}
            folders.append(_name(root, folder))
        for file in (place / name for name in names):
            if file.is_file():
                files.append(_name(root, file))
            elif not file.name.startswith("."):
                kind = "a link that leads nowhere" if file.is_symlink() else "a device, pipe or socket"
                raise _refused(root, file, kind)
    return files, folders


def as_text(path: Path, name: bytes) -> str:
    """The name of a file in the folder or archive ``path``, as text.

    Raises:
        InvalidInput: the name is not UTF-8.
    """
    try:
        return name.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidInput("dataset", str(path), f"file names in UTF-8, not {name!r}") from None


def _name(root: Path, path: Path) -> bytes:
    return os.fsencode(path.relative_to(root))


def _refused(root: Path, path: Path, kind: str) -> InvalidInput:
    name = _name(root, path).decode("utf-8", "backslashreplace")
    return InvalidInput("dataset", str(root), f"files, folders and links to them; {name!r} is {kind}")


def _raise(error: OSError) -> None:
    raise error
