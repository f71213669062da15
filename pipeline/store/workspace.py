"""The sources that a sweep runs on, the folders that it writes, and its lock."""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from pfl.core.errors import Conflict, InvalidInput
from pfl.core.files import writing
from pfl.run.errors import cause_of, trace_of
from pfl.run.sources import Sources, knows, running_code
from pfl.run.trials import Trial, folder_of
from pipeline.spec.extends import lineage

SCRATCH = Path(".sweeps")
"""Folder of unfinished work. It is untracked and not needed after a sweep, except for the ledger and kept
models.
"""

MODELS = SCRATCH / "models"
"""Folder of the final models of trials, by key, for tables that keep them."""

PROBE = 4096  # bytes written to test whether a folder is writable


@contextmanager
def table_lock(name: str) -> Iterator[None]:
    """Hold the lock of a table or a figure; the system releases it when the process ends, even if killed.

    Raises:
        InvalidInput: another process holds it, or its file cannot be written.
    """
    lock = SCRATCH / f"lock-{name}"
    with writing(lock):
        SCRATCH.mkdir(exist_ok=True)
        file = lock.open("a+")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            used = f"in use by another command ({file.read()})"
            raise Conflict(name, used, "wait for it, or stop it") from None
        except OSError:  # on a file system without locks
            pass
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}, since {datetime.now():%H:%M}")
        file.flush()
        yield


def checkpoints_of(table: str) -> Path:
    """The folder of the checkpoints of a table's unfinished trials."""
    return SCRATCH / "trials" / table


def checkpoint_folder(*trials: Trial) -> Path:
    """The folder of the checkpoints of one stack's trials."""
    return checkpoints_of(trials[0].table) / folder_of(*trials)


def explained(table: str, error: BaseException) -> str:
    """Why a trial failed, in a line. It names the file of the traceback, if the traceback says more.

    Trials that failed in the same way share the file, which is removed with the checkpoints of the table.
    """
    cause, trace = cause_of(error), trace_of(error)
    if trace:
        content = trace.encode(errors="backslashreplace")
        file = checkpoints_of(table) / f"{hashlib.sha256(content).hexdigest()[:12]}.txt"
        with suppress(OSError):  # on a full disk
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
            cause = f"{cause} (traceback in {file})"
    return cause


def models_file(key: str) -> Path:
    return MODELS / f"{key}.pt"


def current_sources(table: str | None = None) -> Sources:
    """The running code; also ``dirty`` if a file of ``table`` (or of a figure) is not committed."""
    code = running_code()
    files = [str(source.file) for source in lineage(table)] if table else []
    return replace(code, dirty=code.dirty or not all(knows(Path(), file) for file in files))


def check_folder(parameter: str, folder: Path) -> None:
    """Check that a folder exists or can be created, and is writable, by writing an unnamed file.

    Raises:
        InvalidInput: it is not; the message has the system's reason.
    """
    try:
        there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(bytes(PROBE))
    except OSError as error:
        accepted = f"a folder that can be written ({error.strerror})"
        raise InvalidInput(parameter, str(folder), accepted) from None
