"""Downloads that go on where they stopped."""

from __future__ import annotations

import http.client
import time
import urllib.request
from pathlib import Path
from urllib.error import HTTPError

from tqdm import tqdm

from pfl.data import checksum
from pfl.data.definition import RemoteFile
from pfl.errors import InvalidInput

_TRIES = 4
"""Connections in a row that may bring nothing before a download is given up."""
_PAUSE = 1.0
"""Seconds before the second of them; doubled for each further one."""
_CHUNK = 1 << 20


def fetch(file: RemoteFile, folder: Path, progress: bool = True) -> Path:
    """The file in ``folder``, downloaded unless it is there.

    What has arrived stays in ``<name>.part``: a cut connection, or the next call, goes on from there. The
    file gets its name once its checksum holds.

    Raises:
        InvalidInput: the server cannot be reached or the file's checksum is wrong; the message says which
            file to put where by hand.
    """
    path = folder / file.name
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{file.name}.part"
    by_hand = f"{file.name} in {folder} or in DATA_SOURCE"
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
                accepted = f"{by_hand}, as it could not be downloaded ({error})"
                raise InvalidInput("dataset", file.url, accepted) from error
            if failures:
                time.sleep(_PAUSE * 2 ** (failures - 1))
    try:
        checksum.verify(part, file, folder)
    except InvalidInput as error:
        part.unlink()
        raise InvalidInput("dataset", file.url, f"{by_hand}; what came was deleted ({error})") from error
    return part.replace(path)


def _receive(url: str, part: Path, progress: bool) -> None:
    """Append to ``part`` what it lacks; start over where the server does not continue.

    Raises:
        OSError, HTTPException: the connection failed, or ended before the whole file had come.
    """
    have = _size(part)
    headers = {"User-Agent": "pfl-repro"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60)
    except HTTPError as error:
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            part.unlink()  # it is longer than the file; the next connection starts over
            raise ConnectionError("the file has become shorter") from error
        raise
    with response:
        if response.status != http.HTTPStatus.PARTIAL_CONTENT:
            have = 0
        length = response.headers["Content-Length"]
        total = have + int(length) if length else None
        with (
            part.open("ab" if have else "wb") as out,
            tqdm(
                desc=part.stem, initial=have, total=total, unit="B", unit_scale=True, disable=not progress
            ) as bar,
        ):
            while chunk := response.read(_CHUNK):
                out.write(chunk)
                bar.update(len(chunk))
    if total is not None and _size(part) != total:
        raise ConnectionError(f"it was cut after {_size(part)} of {total} bytes")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
