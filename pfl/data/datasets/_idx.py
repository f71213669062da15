"""Reader of MNIST's idx format, gzipped or not: a header of big-endian sizes, then bytes."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath
from typing import IO, TypeVar

import numpy as np

from pfl.core.errors import InvalidInput
from pfl.data.archive import Tree
from pfl.data.cache import ArrayWriter

_BLOCK = 8192


T = TypeVar("T")


def append_idx(
    files: Sequence[T],
    opened: Callable[[T], IO[bytes]],
    out: ArrayWriter,
    orient: Callable[[np.ndarray], np.ndarray] = np.asarray,
) -> int:
    """Append the training and test set in four idx files: images, labels, test images, test labels.

    Args:
        opened: opens one of ``files``.
        orient: applied to each block of images, (n, H, W).

    Returns:
        The number of training images.
    """
    counts = []
    for images, labels in (files[:2], files[2:]):
        with opened(images) as image_file, opened(labels) as label_file:
            counts.append(_append(image_file, label_file, out, orient))
    return counts[0]


def _append(
    images: IO[bytes], labels: IO[bytes], out: ArrayWriter, orient: Callable[[np.ndarray], np.ndarray]
) -> int:
    """Append a file of images and one of labels in blocks, and return their number."""
    with _plain(images) as image_bytes, _plain(labels) as label_bytes:
        count, height, width = _sizes(image_bytes, 3)
        _sizes(label_bytes, 1)
        for start in range(0, count, _BLOCK):
            n = min(_BLOCK, count - start)
            block = np.frombuffer(image_bytes.read(n * height * width), np.uint8).reshape(n, height, width)
            out.append(orient(block)[:, None], np.frombuffer(label_bytes.read(n), np.uint8))
    return count


def find_idx(tree: Tree, names: Sequence[str]) -> list[str] | None:
    """The idx files with these names in any folder of a tree, gzipped or not; None if there are none.

    Raises:
        InvalidInput: only some of them exist.
    """
    by_name = {PurePosixPath(name).name.removesuffix(".gz"): name for name in tree.names}
    if not by_name.keys() & set(names):
        return None
    missing = [name for name in names if name not in by_name]
    if missing:
        raise InvalidInput("dataset", str(tree.path), f"a folder or archive with {missing[0]}")
    return [by_name[name] for name in names]


def _plain(file: IO[bytes]) -> IO[bytes]:
    """The content of a file that may be gzipped."""
    start = file.read(2)
    file.seek(0)
    return gzip.open(file) if start == b"\x1f\x8b" else file  # type: ignore[return-value]


def _sizes(file: IO[bytes], dimensions: int) -> list[int]:
    """The sizes in an idx header, whose magic number is 0x0800 (bytes) plus the number of dimensions."""
    header: list[int] = np.frombuffer(file.read(4 + 4 * dimensions), ">u4").tolist()
    magic, *sizes = header
    if magic != 0x0800 + dimensions:
        raise InvalidInput("dataset", f"magic number {magic:#x}", f"an idx file of {dimensions} dimensions")
    return sizes
