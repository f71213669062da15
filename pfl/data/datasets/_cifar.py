"""Reader of CIFAR's pickled batches in a gzipped tar."""

from __future__ import annotations

import pickle
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from pfl.data.cache import ArrayWriter


@contextmanager
def opened(path: Path) -> Iterator[tarfile.TarFile]:
    """Open the archive. It contains pickles, so open only files whose checksum was verified."""
    with tarfile.open(path) as archive:
        yield archive


def unpickled(archive: tarfile.TarFile, member: str) -> dict[str, Any]:
    """The dictionary stored in a member of the archive."""
    file = archive.extractfile(member)
    assert file is not None, member
    content: dict[str, Any] = pickle.load(file, encoding="latin1")
    return content


def append_batches(archive: tarfile.TarFile, members: Sequence[str], labels: str, out: ArrayWriter) -> int:
    """Append the images of the batches ``members`` with the labels under that key; return their number."""
    count = 0
    for member in members:
        batch = unpickled(archive, member)
        images = np.asarray(batch["data"], np.uint8).reshape(-1, 3, 32, 32)
        out.append(images, np.array(batch[labels]))
        count += len(images)
    return count
