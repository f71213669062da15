"""Reader of MNIST's idx format, gzipped or not: a header of big-endian sizes, then bytes."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePosixPath

import numpy as np

from pfl.core.errors import InvalidInput
from pfl.data.archive import DAMAGED, Tree
from pfl.data.cache import ArrayWriter

_BLOCK = 8192


def append_idx(
    files: Iterator[tuple[str, bytes]],
    out: ArrayWriter,
    orient: Callable[[np.ndarray], np.ndarray] = np.asarray,
) -> int:
    """Append the training and test set in four idx files: images, labels, test images, test labels.

    Args:
        files: name and content of each file.
        orient: applied to each block of images, (n, H, W).

    Returns:
        The number of training images.

    Raises:
        InvalidInput: a file is damaged, or there are more or fewer labels than images.
    """
    counts = []
    for (images_name, images_file), (labels_name, labels_file) in zip(files, files, strict=True):
        images, labels = _array(images_name, images_file, 3), _array(labels_name, labels_file, 1)
        if len(images) != len(labels):
            given = f"{images_name} with {len(images)} images and {labels_name} with {len(labels)} labels"
            raise InvalidInput("dataset", given, "one label per image")
        for start in range(0, len(images), _BLOCK):
            block = slice(start, start + _BLOCK)
            out.append(orient(images[block])[:, None], labels[block])
        counts.append(len(images))
    return counts[0]


def find_idx(tree: Tree, names: Sequence[str]) -> Iterator[tuple[str, bytes]] | None:
    """Names and contents of the idx files with these names in any folder of a tree, gzipped or not; None if
    there are none.

    Raises:
        InvalidInput: only some of them exist.
    """
    by_name = {PurePosixPath(name).name.removesuffix(".gz"): name for name in tree.names}
    if not by_name.keys() & set(names):
        return None
    missing = [name for name in names if name not in by_name]
    if missing:
        raise InvalidInput("dataset", str(tree.path), f"a folder or archive with {missing[0]}")
    return ((f"{tree.path}: {by_name[name]}", tree.read(by_name[name])) for name in names)


def _array(name: str, content: bytes, dimensions: int) -> np.ndarray:
    """The array in an idx file, whose magic number is 0x0800 (bytes) plus the number of dimensions."""
    try:
        if content.startswith(b"\x1f\x8b"):
            content = gzip.decompress(content)
        magic, *sizes = np.frombuffer(content, ">u4", 1 + dimensions).tolist()
        if magic != 0x0800 + dimensions:
            raise ValueError(f"its magic number is {magic:#x}")
        return np.frombuffer(content, np.uint8, offset=4 * (1 + dimensions)).reshape(sizes)
    except (ValueError, *DAMAGED) as error:
        accepted = f"a complete idx file of {dimensions} dimensions ({error})"
        raise InvalidInput("dataset", name, accepted) from error
