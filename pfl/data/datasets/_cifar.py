"""The CIFAR archives, read by torchvision (Krizhevsky, 2009)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import gettempdir

import numpy as np

from pfl.core.files import scratch_folder
from pfl.data.archive import UNPACKED
from pfl.data.cache import ArrayWriter, Content
from pfl.data.definition import Definition, RemoteFile

IMAGES = 60_000


def cifar(classes: int, archive: RemoteFile, content: str) -> Definition:
    """The definition of CIFAR-10 or CIFAR-100, by the number of classes."""

    def read(files: Sequence[Path], out: ArrayWriter) -> Content:
        """Append the training images, then the test images."""
        from torchvision import datasets

        reader = datasets.CIFAR10 if classes == 10 else datasets.CIFAR100
        out.expect(IMAGES)
        with scratch_folder(Path(gettempdir()), UNPACKED) as folder:
            datasets.utils.extract_archive(str(files[0]), folder)
            train, test = (reader(folder, train) for train in (True, False))
        for split in (train, test):
            out.append(split.data.transpose(0, 3, 1, 2), np.array(split.targets))
        return Content(tuple(train.classes), len(train))

    return Definition((3, 32, 32), classes, IMAGES, read, (archive,), content=content)
