"""CIFAR-10: 60,000 colour photographs of 10 classes, 32x32 (Krizhevsky, 2009)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pfl.data.cache import ArrayWriter, Content
from pfl.data.datasets._cifar import append_batches, opened, unpickled
from pfl.data.definition import Definition, RemoteFile

_FOLDER = "cifar-10-batches-py"


def read(files: Sequence[Path], out: ArrayWriter) -> Content:
    """The official order: five training batches of 10,000, then the test batch."""
    out.expect(cifar10.samples)
    with opened(files[0]) as archive:
        train = [f"{_FOLDER}/data_batch_{i}" for i in range(1, 6)]
        n_train = append_batches(archive, train, "labels", out)
        append_batches(archive, [f"{_FOLDER}/test_batch"], "labels", out)
        classes = unpickled(archive, f"{_FOLDER}/batches.meta")["label_names"]
    return Content(tuple(classes), n_train)


cifar10 = Definition(
    shape=(3, 32, 32),
    classes=10,
    samples=60_000,
    read=read,
    files=(
        RemoteFile(
            "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz", md5="c58f30108f718f92721af3b95e74349a"
        ),
    ),
    # Of a lossless copy whose counts are official and whose training images have the known channel means
    # 125.306918, 122.950394 and 113.865383.
    content="8617fdf2298312506d90ae506b4181e3e7b9a7e4c0e98ae445050128b7c326cc",
)
