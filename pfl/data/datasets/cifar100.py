"""CIFAR-100: 60,000 colour photographs of 100 fine classes, 32x32 (Krizhevsky, 2009)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pfl.data.cache import ArrayWriter, Content
from pfl.data.datasets._cifar import append_batches, opened, unpickled
from pfl.data.definition import Definition, RemoteFile

_FOLDER = "cifar-100-python"


def read(files: Sequence[Path], out: ArrayWriter) -> Content:
    """The official order, with the fine labels."""
    out.expect(cifar100.samples)
    with opened(files[0]) as archive:
        n_train = append_batches(archive, [f"{_FOLDER}/train"], "fine_labels", out)
        append_batches(archive, [f"{_FOLDER}/test"], "fine_labels", out)
        classes = unpickled(archive, f"{_FOLDER}/meta")["fine_label_names"]
    return Content(tuple(classes), n_train)


cifar100 = Definition(
    shape=(3, 32, 32),
    classes=100,
    samples=60_000,
    read=read,
    files=(
        RemoteFile(
            "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz", md5="eb9058c3a382ffc7106e4002c42a8d85"
        ),
    ),
    # Of a lossless copy whose counts are official and whose training images have the known channel means
    # 129.304166, 124.069963 and 112.434050.
    content="f3fb448d38912a161928da0f6be410977df1d07dd76552e64922d9e81c07f971",
)
