"""The decode cache: a data set is decoded once, into one uint8 file that is memory-mapped afterwards.

A cache entry is a folder ``<name>-<key>`` with ``images.bin`` (uint8, N x C x H x W), ``labels.npy``,
``meta.json`` and, where there are any, ``writer.npy`` and ``domain.npy``.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import math
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from tqdm import tqdm

from pfl.data.resize import Resize
from pfl.errors import InvalidInput
from pfl.files import cache_root

log = logging.getLogger(__name__)

FORMAT = 2
"""Part of every key; raise it when decoding the same files gives other values."""

T = TypeVar("T")

_DAMAGED = (FileNotFoundError, EOFError, ValueError, KeyError, TypeError)
"""Exceptions of reading an entry that was truncated or overwritten."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CHUNK = 4096
"""Images that a pass over a data set holds at a time."""


@dataclass(frozen=True)
class Content:
    """What a reader says about the images that it has appended.

    Attributes:
        classes: the classes' names; a label is an index into them.
        n_train: how many images, counted from the first, are the official training set; None means all.
        domains: the domains' names, if the images came with a domain.
        formats: endings of the image files, "jpg"; empty where the images were no files of their own.
    """

    classes: tuple[str, ...]
    n_train: int | None = None
    domains: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()


class ArrayWriter:
    """Receives a data set's images, block by block, and writes them straight to the cache entry's file.

    Args:
        size: of the images that are written; None leaves them as they are.
    """

    def __init__(self, folder: Path, progress: bool, size: Resize | None = None):
        self.size = size
        self.shape: tuple[int, ...] = ()
        self._folder = folder
        self._images = (folder / "images.bin").open("wb")
        self._columns: dict[str, list[np.ndarray]] = {"labels": [], "writer": [], "domain": []}
        self._progress = progress
        self._bar = tqdm(disable=True)

    def expect(self, count: int | None) -> None:
        """Say how many images there will be, if known: a progress bar appears if they take long."""
        self._bar = tqdm(total=count, desc="decoding", unit=" images", disable=not self._progress, delay=1)

    def append(
        self,
        images: np.ndarray,
        labels: np.ndarray,
        writer: np.ndarray | None = None,
        domain: np.ndarray | None = None,
    ) -> None:
        """Add images, uint8 (n, C, H, W), with the label, writer and domain of each, (n,).

        Raises:
            ValueError: there are more or fewer labels, writers or domains than images.
        """
        for name, values in (("labels", labels), ("writer", writer), ("domain", domain)):
            if values is not None:
                if values.shape != (len(images),):
                    raise ValueError(f"{name} of shape {values.shape} for {len(images)} images")
                self._columns[name].append(np.asarray(values, np.int64))
        if self.size:
            images = self.size.array(images)
        self.shape = images.shape[1:]
        self._images.write(np.ascontiguousarray(images).data)
        self._bar.update(len(images))

    def column(self, name: str) -> np.ndarray | None:
        """The values appended as ``name``: labels, writer or domain."""
        blocks = self._columns[name]
        return np.concatenate(blocks) if blocks else None

    def finish(self, content: Content, source: dict[str, Any]) -> None:
        """Write what describes the images: labels, checksums, mean and standard deviation."""
        self.close()
        labels = self.column("labels")
        assert labels is not None
        for name in self._columns:
            if (values := self.column(name)) is not None:
                np.save(self._folder / f"{name}.npy", values)
        images = np.memmap(self._folder / "images.bin", np.uint8, "r", shape=(len(labels), *self.shape))
        n_train = len(labels) if content.n_train is None else content.n_train
        mean, std = channel_statistics(images[:n_train])
        meta = {
            "shape": self.shape,
            "classes": content.classes,
            "domains": content.domains,
            "n_train": n_train,
            "checksum": ordered_checksum(images, labels, content.classes, n_train),
            "content": content_checksum(images, labels, n_train),
            "mean": mean,
            "std": std,
            "source": source | ({"formats": content.formats} if content.formats else {}),
        }
        (self._folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")

    def close(self) -> None:
        self._images.close()
        self._bar.close()


def entry(name: str, key: str, write: Callable[[Path], None], read: Callable[[Path], T]) -> T:
    """The result of ``read`` on a cache entry's folder, which ``write`` makes if it is absent or damaged.

    Safe when several processes make the same entry at once: each writes to a folder of its own, and the first
    to finish gives its folder the entry's name.

    Raises:
        InvalidInput: the cache folder cannot be written, or is full.
    """
    root = cache_root()
    folder = root / f"{name}-{key[:16]}"
    if folder.is_dir():
        try:
            return read(folder)
        except _DAMAGED as error:
            log.warning("%s is damaged and is made again (%s)", folder, error)
            with _temporary(root, name) as aside, suppress(FileNotFoundError):  # another process was first
                folder.replace(aside)
    with _temporary(root, name) as made:
        try:
            write(made)
            made.replace(folder)
        except OSError as error:
            if error.errno in _FULL:
                raise _unwritable(root, error) from error
            if not folder.is_dir():  # otherwise another process was first
                raise
    return read(folder)


@contextmanager
def _temporary(root: Path, name: str) -> Iterator[Path]:
    """A new folder beside the cache entries; anything left under its name is removed at the end."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=root))
    except OSError as error:
        raise _unwritable(root, error) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _unwritable(root: Path, error: OSError) -> InvalidInput:
    return InvalidInput("PFL_CACHE", str(root), f"a folder that can be written ({error.strerror})")


def key_of(parts: Iterable[object]) -> str:
    """A hexadecimal key over the text of ``parts`` and the cache's format."""
    return hashlib.sha256(json.dumps([FORMAT, *map(str, parts)]).encode()).hexdigest()


def channel_statistics(images: np.ndarray) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel of uint8 images (N, C, H, W), scaled to [0, 1].

    Summed in integers, so exact whatever the order. A constant channel has standard deviation 0.
    """
    channels = images.shape[1]
    total, squares = [0] * channels, [0] * channels
    for start in range(0, len(images), _CHUNK):
        block = images[start : start + _CHUNK]
        square = np.square(block, dtype=np.uint16)
        for c in range(channels):
            total[c] += int(block[:, c].sum(dtype=np.uint64))
            squares[c] += int(square[:, c].sum(dtype=np.uint64))
    count = images[:, 0].size
    mean = [t / count / 255 for t in total]
    std = [math.sqrt(count * s - t * t) / count / 255 for t, s in zip(total, squares, strict=True)]
    return mean, std


def ordered_checksum(images: np.ndarray, labels: np.ndarray, classes: Iterable[str], n_train: int) -> str:
    """The sha256 over a data set's decoded images in their order, labels, classes and split."""
    digest = hashlib.sha256(json.dumps([images.shape, list(classes), n_train]).encode())
    for start in range(0, len(images), _CHUNK):
        digest.update(np.ascontiguousarray(images[start : start + _CHUNK]).data)
    digest.update(labels.tobytes())
    return digest.hexdigest()


def content_checksum(images: np.ndarray, labels: np.ndarray, n_train: int) -> str:
    """The sha256 over a data set's decoded images and labels in any order.

    It is the digest of the sorted digests of all samples: pixels, label, and whether the sample is a training
    sample. It is the same for every container and every order within training and test set.
    """
    digests = sorted(
        hashlib.sha256(image.tobytes() + b"%d %d" % (label, i < n_train)).digest()
        for i, (image, label) in enumerate(zip(np.asarray(images), labels.tolist(), strict=True))
    )
    return hashlib.sha256(json.dumps(images.shape[1:]).encode() + b"".join(digests)).hexdigest()
