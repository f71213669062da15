"""Resumable downloads."""

from __future__ import annotations

import http.client
import os
import time
import urllib.request
from pathlib import Path
from urllib.error import HTTPError

from pfl.core.errors import Conflict
from pfl.core.files import folder_lock, writing
from pfl.core.terminal import bar
from pfl.data import checksum
from pfl.data.definition import RemoteFile

_TRIES = 4
"""Number of successive connections without any data after which a download fails."""
_PAUSE = 1.0
"""Seconds before the second attempt; doubled for each further one."""
_CHUNK = 1 << 20


def fetch(file: RemoteFile, folder: Path, progress: bool = True) -> Path:
    """Return the path of the file in ``folder``; download it if it is not there.

    Partial data stay in ``<name>.part``. After a lost connection, and in the next call, the download
    continues from there. The file is renamed once its checksum is correct.

    Raises:
        InvalidInput: the server cannot be reached or the file's checksum is wrong; the message says where to
            place which file by hand.
    """
    path = folder / file.name
    if path.exists():
        return path
    with writing(folder, "dataset"), folder_lock(folder):
        return path if path.exists() else _fetched(file, folder, progress)


def _fetched(file: RemoteFile, folder: Path, progress: bool) -> Path:
    """Download a file that does not exist, while holding the lock of ``folder``."""
    part = folder / f"{file.name}.part"
    by_hand = f"place {file.name} in {folder} or in DATA_SOURCE"
    failures = 0
    while True:
        before = _size(part)
        try:
            _receive(file.url, part, progress)
            break
        except (OSError, http.client.HTTPException) as error:
            failures = 0 if _size(part) > before else failures + 1
            refused = isinstance(error, HTTPError) and error.code < 500
            if refused or failures == _TRIES:
                raise Conflict("dataset", f"{file.url} could not be downloaded ({error})", by_hand) from error
            if failures:
                time.sleep(_PAUSE * 2 ** (failures - 1))
    try:
        checksum.verify(part, file)
    except checksum.WrongChecksum as error:
        part.unlink()
        reason = f"{file.url} was downloaded and deleted, because its checksum is wrong ({error})"
        raise Conflict("dataset", reason, by_hand) from error
    with part.open("rb") as received:
        os.fsync(received.fileno())  # or a power failure could leave an empty file with the final name
    return part.replace(folder / file.name)


def _receive(url: str, part: Path, progress: bool) -> None:
    """Append the missing bytes to ``part``; start over if the server cannot continue.

    Raises:
        OSError, HTTPException: the connection failed, or closed before the end of the file.
    """
    have = _size(part)
    headers = {"User-Agent": "pfl-repro"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60)
    except HTTPError as error:
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            if error.headers.get("Content-Range") == f"bytes */{have}":
                return  # the whole file is there
            part.unlink()  # it is longer than the file, so the next connection starts over
            raise ConnectionError("the file has become shorter") from error
        raise
    with response:
        if response.status != http.HTTPStatus.PARTIAL_CONTENT:
            have = 0
        length = response.headers["Content-Length"]
        total = have + int(length) if length else None
        with part.open("ab" if have else "wb") as out, bar(part.stem, "B", total, progress, have) as received:
            while chunk := response.read(_CHUNK):
                out.write(chunk)
                received.update(len(chunk))
    if total is not None and _size(part) != total:
        raise ConnectionError(f"truncated after {_size(part)} of {total} bytes")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
