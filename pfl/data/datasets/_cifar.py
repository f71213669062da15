"""The CIFAR archives: pickled batches of images in a gzipped tar (Krizhevsky, 2009)."""

from __future__ import annotations

import pickle
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pfl.data.cache import ArrayWriter, Content
from pfl.data.definition import Definition, RemoteFile

IMAGES = 60_000


def cifar(
    classes: int,
    archive: RemoteFile,
    folder: str,
    train: Sequence[str],
    test: str,
    meta: str,
    kind: str,
    content: str,
) -> Definition:
    """The definition of CIFAR-10 or CIFAR-100.

    Args:
        folder: folder of the files in the archive.
        train, test: the batches of the official training and test set.
        meta: the file with the class names.
        kind: the prefix of a label's key, as in "fine_label".
    """

    def read(files: Sequence[Path], out: ArrayWriter) -> Content:
        """Append the training batches, then the test batch."""
        out.expect(IMAGES)
        with tarfile.open(files[0]) as opened:
            counts = []
            for name in (*train, test):
                batch = _unpickled(opened, f"{folder}/{name}")
                images = np.asarray(batch["data"], np.uint8).reshape(-1, 3, 32, 32)
                out.append(images, np.array(batch[f"{kind}s"]))
                counts.append(len(images))
            names = _unpickled(opened, f"{folder}/{meta}")[f"{kind}_names"]
        return Content(tuple(names), sum(counts[:-1]))

    return Definition((3, 32, 32), classes, IMAGES, read, (archive,), content=content)


def _unpickled(archive: tarfile.TarFile, member: str) -> dict[str, Any]:
    """The dictionary in a member of an archive with a verified checksum, as a pickle can run code."""
    file = archive.extractfile(member)
    assert file is not None, member
    content: dict[str, Any] = pickle.load(file, encoding="latin1")
    return content
