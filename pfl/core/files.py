"""Atomic writes and durable JSONL."""

from __future__ import annotations

import errno
import fcntl
import glob
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import Any, BinaryIO, NamedTuple

from pfl.core.errors import InvalidInput

log = logging.getLogger(__name__)

SECONDS_BETWEEN_TRIES = 5.0  # while the disk is full
ABANDONED_SECONDS = 3600.0  # since the last write to a temporary file; its process was killed
LOCK = ".lock"  # file in a scratch folder, locked by the process that uses the folder


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A temporary file to write to, which replaces ``path`` once it is completely on disk.

    Several processes may write the same file; it is then the one of the last to end. Devices and pipes, such
    as /dev/stdout, are written to directly.

    Raises:
        OSError: it cannot be written; ``path`` is then unchanged.
    """
    if _is_special(path):
        with path.open("wb") as file:
            yield file
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(path)
    with partial.open("w+b") as file:
        try:
            now = os.fstat(file.fileno()).st_mtime  # by the file server's clock
            for left in path.parent.glob(f"{glob.escape(path.name)}.partial-*"):
                with suppress(OSError):  # another process has renamed or removed it meanwhile
                    if now - left.lstat().st_mtime > ABANDONED_SECONDS:
                        left.unlink()
            yield file
            file.flush()
            os.fsync(file.fileno())
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


def _is_special(path: Path) -> bool:
    return path.exists() and not path.is_file() and not path.is_dir()


def _partial(path: Path) -> Path:
    """A new temporary file for ``path``: not every file system has locks for processes to share one."""
    return path.parent / f"{path.name}.partial-{token_hex(4)}"


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock on ``folder``, if its file system has locks. It is created if needed."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)  # the system releases it when the process ends, even if killed
        yield
    finally:
        os.close(handle)


@contextmanager
def scratch_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """A new folder in ``parent`` that is removed at the end, unless `publish` has renamed it.

    If the process is killed, the folder stays until `remove_abandoned` finds it.
    """
    parent.mkdir(parents=True, exist_ok=True)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        lock = (folder / LOCK).open("wb")
        with suppress(OSError):  # on a file system without locks, no folder is regarded as abandoned
            fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / LOCK).exists():
            break
        lock.close()  # another process removed the folder before it was locked
    try:
        yield folder
    finally:
        lock.close()
        with suppress(OSError):  # a folder that `publish` has renamed
            _remove(folder)


def publish(scratch: Path, target: Path) -> None:
    """Rename a scratch folder to ``target``, which must be empty or not exist; others may then read it as far
    as the umask allows."""
    mode = (scratch / LOCK).stat().st_mode & 0o777
    scratch.chmod(mode | (mode & 0o444) >> 2)  # a folder that may be read may be entered
    (scratch / LOCK).unlink()
    scratch.replace(target)


def remove_abandoned(parent: Path, prefix: str) -> None:
    """Remove the scratch folders with this prefix whose process was killed."""
    for lock in parent.glob(f"{prefix}*/{LOCK}"):
        with suppress(OSError), lock.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while the folder is in use
            _remove(lock.parent)


def _remove(folder: Path) -> None:
    """Remove a scratch folder. While a process still writes to it, its lock stays, so that the next call of
    `remove_abandoned` finds it."""
    remove_others(folder, {LOCK})
    if all(path.name == LOCK for path in folder.iterdir()):
        shutil.rmtree(folder)


def remove_others(folder: Path, kept: Container[str]) -> None:
    """Remove all in a folder but the files that are named in ``kept``.

    Raises:
        OSError: a file cannot be removed; a folder that cannot be removed stays.
    """
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name not in kept:
            path.unlink()


def expanded(path: str | Path, parameter: str) -> Path:
    """``path`` with ~ expanded to the home folder.

    Args:
        parameter: the user's parameter, for errors.

    Raises:
        InvalidInput: it is not a path, or the home folder is unknown.
    """
    try:
        return Path(path).expanduser()
    except (TypeError, RuntimeError) as error:
        raise InvalidInput(parameter, path, f"a path ({error})") from None


def cache_root() -> Path:
    """The folder PFL_CACHE, by default ~/.cache/pfl-repro.

    Raises:
        InvalidInput: the user has no home folder, as in some containers.
    """
    folder = os.environ.get("PFL_CACHE") or "~/.cache/pfl-repro"
    try:
        return Path(folder).expanduser()
    except RuntimeError:
        accepted = "an existing folder; this user has no home, so set HOME or PFL_CACHE"
        raise InvalidInput("PFL_CACHE", folder, accepted) from None


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` atomically.

    Raises:
        InvalidInput: it cannot be written.
    """
    with writing(path), replacing(path) as file:
        file.write(text.encode())


def write_lines(path: Path, lines: Iterable[bytes]) -> None:
    """Write ``lines``, given without line endings, to ``path`` atomically.

    Raises:
        InvalidInput: it cannot be written.
    """
    with writing(path), replacing(path) as file:
        file.writelines(line + b"\n" for line in lines)


def write_json(path: Path, content: Any) -> None:
    """Write JSON atomically."""
    write_text(path, json.dumps(content, indent=1) + "\n")


@contextmanager
def writing(path: Path, parameter: str = "file") -> Iterator[None]:
    """A context that turns an `OSError` on writing ``path`` into an `InvalidInput` of ``parameter``."""
    try:
        yield
    except OSError as error:
        accepted = f"a file that can be written ({error.strerror})"
        raise InvalidInput(parameter, str(path), accepted) from None


def check_writable(path: Path, parameter: str) -> None:
    """Check early that ``path`` can be written.

    Args:
        parameter: the user's parameter, for errors.

    Raises:
        InvalidInput: ``path``, or a temporary file of `replacing`, cannot be written.
    """
    with writing(path, parameter):
        path.parent.mkdir(parents=True, exist_ok=True)
        for file in (path,) if _is_special(path) else (path, _partial(path)):
            there = file.exists()
            file.open("ab").close()
            if not there:
                file.unlink()


def parse_json(content: str | bytes) -> Any:
    """The value of a JSON text, parsed strictly.

    Raises:
        ValueError: it is not JSON, or an object has a key that cannot be encoded or a duplicate key.
    """
    return json.loads(content, object_pairs_hook=_distinct)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    for name in values:
        name.encode()  # raises a ValueError for a lone surrogate
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} occurs twice")
    return values


def append_lines(path: Path, lines: Iterable[bytes], wait: bool = False) -> None:
    """Append ``lines``, given without line endings; they are on disk when this returns.

    An incomplete last line of the file is ended first.

    Args:
        wait: if the disk is full, wait for free space instead of raising.

    Raises:
        InvalidInput: the file cannot be written; it is then unchanged.
    """
    text = b"".join(line + b"\n" for line in lines)
    with writing(path):
        if wait:
            wait_for_space(path, lambda: _append(path, text))
        else:
            _append(path, text)


def wait_for_space(path: Path, write: Callable[[], None]) -> None:
    """Call ``write``, which writes ``path``, and again as long as the disk is full.

    Raises:
        OSError: it cannot be written for another reason.
    """
    warned = False
    while True:
        try:
            return write()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
        if not warned:
            log.warning("%s: no space left on the disk; waiting for space (Ctrl-C stops)", path)
            warned = True
        time.sleep(SECONDS_BETWEEN_TRIES)


def _append(path: Path, lines: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b", buffering=0) as file:
        with suppress(OSError):  # on a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)  # so that truncating removes only our own lines
        length = file.seek(0, os.SEEK_END)
        try:
            if length and os.pread(file.fileno(), 1, length - 1) != b"\n":
                lines = b"\n" + lines
            while lines:
                lines = lines[file.write(lines) :]
            os.fsync(file.fileno())
        except OSError:
            with suppress(OSError):
                file.truncate(length)
            raise


class FileLine(NamedTuple):
    """A line of a file, without its line ending.

    Attributes:
        number: 1 for the first line of the file.
        offset: position of its first byte.
    """

    number: int
    offset: int
    content: bytes


def read_lines(path: Path) -> Iterator[FileLine]:
    """Yield the non-blank lines of a file; none if the file does not exist."""
    if not path.exists():
        return
    offset = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield FileLine(number, offset, line.rstrip(b"\r\n"))
            offset += len(line)
