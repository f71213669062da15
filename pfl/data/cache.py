"""Cache of decoded data sets. A data set is decoded once, into a file that is then memory-mapped.

A cache entry is a folder ``<name>-<key>`` with ``images.bin`` (the samples; images as uint8, N x C x H x W),
``labels.npy``, ``meta.json`` and a file ``column<i>.npy`` for each column, such as the writers.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import shutil
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from pfl.core.errors import InvalidInput
from pfl.core.files import cache_root, folder_lock, publish, remove_abandoned, scratch_folder
from pfl.core.terminal import bar
from pfl.core.text import amount
from pfl.data.resize import Resize
from pfl.data.statistics import training_statistics

log = logging.getLogger(__name__)

FORMAT = 3
"""Part of every key; increase it if the file format of an entry changes, or what its ``source`` states."""

T = TypeVar("T")

_DAMAGED = (FileNotFoundError, EOFError, ValueError, KeyError, TypeError)
"""Exceptions raised on reading an entry that was truncated or overwritten."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_HIDDEN = "."
"""Prefix of folders under construction."""
_CHUNK = 4096
"""Number of samples in memory at once during a pass over a data set."""


@dataclass(frozen=True)
class Content:
    """A reader's description of the images that it appended.

    Attributes:
        classes: the class names; a label is an index into them.
        n_train: the first ``n_train`` images are the official training set; None means all.
        formats: extensions of the image files, e.g. "jpg"; empty if the images were not separate files.
        notes: what the reader left out or regards as probably unintended, one line each.
    """

    classes: tuple[str, ...]
    n_train: int | None = None
    formats: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Changes:
    """How the decoded images differ from their files or samples."""

    def __init__(self) -> None:
        self._names: dict[str, list[str]] = {}

    def add(self, change: str, name: str) -> None:
        """Record a change of the image called ``name``."""
        self._names.setdefault(change, []).append(name)

    def notes(self) -> list[str]:
        """One line per change, with the number of images."""
        return [
            f"{change}: {amount(len(names), 'image')}, the first {names[0]!r}"
            for change, names in self._names.items()
        ]


class ArrayWriter:
    """Writes a data set's samples, block by block, to the file of a cache entry.

    Args:
        size: size to which images are resized; None keeps their size.

    Attributes:
        shape: shape of a sample.
        dtype: dtype of the samples.
        changes: records how images differ from their files.
    """

    def __init__(self, folder: Path, progress: bool, size: Resize | None = None):
        self.size = size
        self.shape: tuple[int, ...] = ()
        self.dtype = np.dtype(np.uint8)
        self._folder = folder
        self._images = (folder / "images.bin").open("wb")
        self._columns: dict[str, list[np.ndarray]] = {}
        self.changes = Changes()
        self._expected: int | None = None
        self._progress = progress
        self._bar = bar("decoding", " images", None, False)

    def expect(self, count: int | None) -> None:
        """Announce the number of images, if known. A progress bar appears if reading takes long."""
        self._expected = count
        self._bar = bar("decoding", " images", count, self._progress)

    def append(self, images: np.ndarray, labels: np.ndarray, /, **columns: np.ndarray) -> None:
        """Append samples with their labels, integers (n,).

        Args:
            images: images, uint8 (n, C, H, W); features or series, floats (n, ...); or tokens, integers
                (n, ...).
            columns: further integers or strings (n,), the same names in every call.

        Raises:
            ValueError: the number of labels or of other values differs from that of the samples.
            InvalidInput: samples other than images would have to be resized, or the cache has no room for
                the expected number of samples.
        """
        for name, values in {"labels": np.asarray(labels, np.int64), **columns}.items():
            if values.shape != (len(images),):
                raise ValueError(f"{name} of shape {values.shape} for {len(images)} images")
            self._columns.setdefault(name, []).append(values)
        if self.size:
            if not is_images(images):
                given = f"{images.dtype} {images.shape[1:]}"
                raise InvalidInput("resize", f"samples of {given}", "images, uint8 (channels, height, width)")
            images = self.size.array(images)
        if not self.shape:
            self._check_room(images[:1].nbytes * (self._expected or len(images)))
        self.shape, self.dtype = images.shape[1:], images.dtype
        self._images.write(np.ascontiguousarray(images).data)
        self._bar.update(len(images))

    def _check_room(self, needed: int) -> None:
        free = shutil.disk_usage(self._folder).free
        if needed > free:
            need, have = (f"{size / 1e6:,.1f} MB" for size in (needed, free))
            accepted = f"a folder with {need} for the decoded images, not {have}"
            raise InvalidInput("PFL_CACHE", str(self._folder.parent), accepted)

    def columns(self) -> dict[str, np.ndarray]:
        """All values that were appended, by name; ``labels`` first."""
        return {name: np.concatenate(blocks) for name, blocks in self._columns.items()}

    def finish(self, content: Content, source: dict[str, Any]) -> None:
        """Write labels, checksums, mean and standard deviation of the images."""
        self.close()
        columns = self.columns()
        labels = columns.pop("labels")
        np.save(self._folder / "labels.npy", labels, allow_pickle=False)
        for i, values in enumerate(columns.values()):
            np.save(self._folder / f"column{i}.npy", values, allow_pickle=False)
        images = np.memmap(self._folder / "images.bin", self.dtype, "r", shape=(len(labels), *self.shape))
        n_train = len(labels) if content.n_train is None else content.n_train
        meta = {
            "shape": self.shape,
            "dtype": self.dtype.name,
            "tokens": tokens_of(images),
            "columns": list(columns),
            "classes": content.classes,
            "n_train": n_train,
            "checksum": ordered_checksum(images, labels, content.classes, n_train),
            "content": content_checksum(images, labels, n_train),
            **training_statistics(images, n_train),
            "source": source | ({"formats": content.formats} if content.formats else {}),
            "notes": [*self.changes.notes(), *content.notes],
        }
        (self._folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")

    def close(self) -> None:
        self._images.close()
        self._bar.close()


def entry(name: str, key: str, write: Callable[[Path], None], read: Callable[[Path], T]) -> T:
    """The result of ``read`` on a cache entry's folder; ``write`` creates an absent or damaged entry.

    Several processes may create the same entry at once: each writes to its own folder. Under a lock, the
    first to finish renames its folder to the entry's name, in place of a damaged entry; the others then read
    that entry. Folders left behind by killed processes are removed.

    Raises:
        InvalidInput: the cache folder is not writable or is full.
    """
    root = cache_root()
    folder = root / f"{name}-{key[:16]}"
    remove_abandoned(root, _HIDDEN)
    if folder.is_dir():
        try:
            return read(folder)
        except _DAMAGED as error:
            log.warning("%s is damaged and is created again (%s)", folder, error)
    with ExitStack() as stack:
        try:
            scratch = stack.enter_context(scratch_folder(root, f"{_HIDDEN}{name}-"))
        except OSError as error:
            raise _unwritable(root, error) from error
        try:
            write(scratch)
            stack.enter_context(folder_lock(root))
            with suppress(*_DAMAGED):
                return read(folder)  # another process was first
            shutil.rmtree(folder, ignore_errors=True)
            publish(scratch, folder)
        except OSError as error:
            if error.errno in _FULL:
                raise _unwritable(root, error) from error
            with suppress(*_DAMAGED):
                return read(folder)  # another process was first, on a file system without locks
            raise
    return read(folder)


def _unwritable(root: Path, error: OSError) -> InvalidInput:
    return InvalidInput("PFL_CACHE", str(root), f"a folder that can be written ({error.strerror})")


def key_of(parts: Iterable[object]) -> str:
    """Hexadecimal hash of ``parts``, as text, and of the cache format's version."""
    return hashlib.sha256(json.dumps([FORMAT, *map(str, parts)]).encode()).hexdigest()


def ordered_checksum(images: np.ndarray, labels: np.ndarray, classes: Iterable[str], n_train: int) -> str:
    """SHA-256 of a data set's decoded samples in their order, its labels, classes and split."""
    digest = hashlib.sha256(json.dumps([images.shape, list(classes), n_train, *_dtype(images)]).encode())
    for start in range(0, len(images), _CHUNK):
        digest.update(np.ascontiguousarray(images[start : start + _CHUNK]).data)
    digest.update(labels.tobytes())
    return digest.hexdigest()


def content_checksum(images: np.ndarray, labels: np.ndarray, n_train: int) -> str:
    """SHA-256 of a data set's decoded images and labels, independent of their order.

    The digest of the sorted digests of all samples, each over pixels, label, and whether it is a training
    sample. It does not depend on the container or on the order within the training and test set.
    """
    digests = sorted(
        hashlib.sha256(image.tobytes() + b"%d %d" % (label, i < n_train)).digest()
        for i, (image, label) in enumerate(zip(np.asarray(images), labels.tolist(), strict=True))
    )
    header = json.dumps([*images.shape[1:], *_dtype(images)])
    return hashlib.sha256(header.encode() + b"".join(digests)).hexdigest()


def _dtype(images: np.ndarray) -> list[str]:
    """The dtype as a part of a checksum; empty for images, whose checksums predate other dtypes."""
    return [] if is_images(images) else [images.dtype.name]


def is_images(samples: np.ndarray) -> bool:
    """Whether samples (N, ...) are images: uint8 (N, C, H, W)."""
    return samples.dtype == np.uint8 and samples.ndim == 4


def tokens_of(samples: np.ndarray) -> int:
    """Vocabulary size of integer samples other than images: their maximum + 1; 0 for all others."""
    return 0 if samples.dtype.kind == "f" or is_images(samples) else int(samples.max()) + 1
