"""Reader of MNIST's gzipped idx format: a header of big-endian sizes, then bytes."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from typing import IO

import numpy as np

from pfl.data.cache import ArrayWriter
from pfl.errors import InvalidInput

_BLOCK = 8192


def append_idx(
    images: IO[bytes],
    labels: IO[bytes],
    out: ArrayWriter,
    orient: Callable[[np.ndarray], np.ndarray] = np.asarray,
) -> int:
    """Append the images and labels of two gzipped idx files in blocks.

    Args:
        orient: applied to each block of images, (n, H, W).

    Returns:
        The number of images.
    """
    with gzip.open(images) as image_bytes, gzip.open(labels) as label_bytes:
        count, height, width = _sizes(image_bytes, 3)
        _sizes(label_bytes, 1)
        for start in range(0, count, _BLOCK):
            n = min(_BLOCK, count - start)
            block = np.frombuffer(image_bytes.read(n * height * width), np.uint8).reshape(n, height, width)
            out.append(orient(block)[:, None], np.frombuffer(label_bytes.read(n), np.uint8))
    return count


def _sizes(file: gzip.GzipFile, dimensions: int) -> list[int]:
    """The sizes in an idx header, whose magic number is 0x0800 (bytes) plus the number of dimensions."""
    header: list[int] = np.frombuffer(file.read(4 + 4 * dimensions), ">u4").tolist()
    magic, *sizes = header
    if magic != 0x0800 + dimensions:
        raise InvalidInput("dataset", f"magic number {magic:#x}", f"an idx file of {dimensions} dimensions")
    return sizes
