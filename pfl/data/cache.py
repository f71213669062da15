"""Cache of decoded data sets. A data set is decoded once, into a uint8 file that is then memory-mapped.

A cache entry is a folder ``<name>-<key>`` with ``images.bin`` (uint8, N x C x H x W), ``labels.npy``,
``meta.json`` and, for data sets with writers or domains, ``writer.npy`` and ``domain.npy``.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import math
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
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

FORMAT = 2
"""Part of every key; increase it if the files of an entry change their form."""

T = TypeVar("T")

_DAMAGED = (FileNotFoundError, EOFError, ValueError, KeyError, TypeError)
"""Exceptions on reading an entry that was truncated or overwritten."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_HIDDEN = "."
"""First letter of the names of folders under construction."""
_CHUNK = 4096
"""Number of images in memory at once during a pass over a data set."""


@dataclass(frozen=True)
class Content:
    """A reader's description of the images that it appended.

    Attributes:
        classes: the classes' names; a label is an index into them.
        n_train: the first ``n_train`` images are the official training set; None means all.
        domains: the domains' names, if the images have domains.
        formats: endings of the image files, e.g. "jpg"; empty if the images were not separate files.
        notes: what the reader left out or regards as probably unintended, a line each.
    """

    classes: tuple[str, ...]
    n_train: int | None = None
    domains: tuple[str, ...] = ()
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
        """A line for each change, with the number of images."""
        return [
            f"{change}: {amount(len(names), 'image')}, the first {names[0]!r}"
            for change, names in self._names.items()
        ]


class ArrayWriter:
    """Receives a data set's images in blocks and writes them to the file of the cache entry.

    Args:
        size: size to which images are resized; None keeps their size.

    Attributes:
        changes: receives how images differ from their files.
    """

    def __init__(self, folder: Path, progress: bool, size: Resize | None = None):
        self.size = size
        self.shape: tuple[int, ...] = ()
        self._folder = folder
        self._images = (folder / "images.bin").open("wb")
        self._columns: dict[str, list[np.ndarray]] = {"labels": [], "writer": [], "domain": []}
        self.changes = Changes()
        self._expected: int | None = None
        self._progress = progress
        self._bar = bar("decoding", " images", None, False)

    def expect(self, count: int | None) -> None:
        """Announce the number of images, if known. A progress bar appears if reading takes long."""
        self._expected = count
        self._bar = bar("decoding", " images", count, self._progress)

    def append(
        self,
        images: np.ndarray,
        labels: np.ndarray,
        writer: np.ndarray | None = None,
        domain: np.ndarray | None = None,
    ) -> None:
        """Add images, uint8 (n, C, H, W), with the label, writer and domain of each, (n,).

        Raises:
            ValueError: the number of labels, writers or domains differs from that of the images.
            InvalidInput: the cache has no room for the expected number of such images.
        """
        for name, values in (("labels", labels), ("writer", writer), ("domain", domain)):
            if values is not None:
                if values.shape != (len(images),):
                    raise ValueError(f"{name} of shape {values.shape} for {len(images)} images")
                self._columns[name].append(np.asarray(values, np.int64))
        if self.size:
            images = self.size.array(images)
        if not self.shape:
            self._check_room(math.prod(images.shape[1:]) * (self._expected or len(images)))
        self.shape = images.shape[1:]
        self._images.write(np.ascontiguousarray(images).data)
        self._bar.update(len(images))

    def _check_room(self, needed: int) -> None:
        free = shutil.disk_usage(self._folder).free
        if needed > free:
            accepted = f"a folder with {needed / 1e9:.1f} GB for the decoded images, not {free / 1e9:.1f} GB"
            raise InvalidInput("PFL_CACHE", str(self._folder.parent), accepted)

    def column(self, name: str) -> np.ndarray | None:
        """All values appended as ``name`` (labels, writer or domain)."""
        blocks = self._columns[name]
        return np.concatenate(blocks) if blocks else None

    def finish(self, content: Content, source: dict[str, Any]) -> None:
        """Write labels, checksums, mean and standard deviation of the images."""
        self.close()
        labels = self.column("labels")
        assert labels is not None
        for name in self._columns:
            if (values := self.column(name)) is not None:
                np.save(self._folder / f"{name}.npy", values)
        images = np.memmap(self._folder / "images.bin", np.uint8, "r", shape=(len(labels), *self.shape))
        n_train = len(labels) if content.n_train is None else content.n_train
        meta = {
            "shape": self.shape,
            "classes": content.classes,
            "domains": content.domains,
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

    Several processes may create the same entry at once: each writes to its own folder, and the first to
    finish renames its folder to the entry's name. Folders that killed processes left are removed.

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
            _set_aside(folder, name, read)
            if folder.is_dir():
                return read(folder)
    with _scratch(root, name) as made:
        try:
            write(made)
            publish(made, folder)
        except OSError as error:
            if error.errno in _FULL:
                raise _unwritable(root, error) from error
            if not folder.is_dir():  # otherwise another process was first
                raise
    return read(folder)


def _set_aside(folder: Path, name: str, read: Callable[[Path], object]) -> None:
    """Remove a damaged cache entry, unless another process has created it again, and may use it now."""
    root = folder.parent
    try:
        with folder_lock(root), _scratch(root, name) as aside:
            try:
                read(folder)
            except _DAMAGED:
                with suppress(FileNotFoundError):
                    folder.replace(aside / "damaged")
    except OSError as error:
        raise _unwritable(root, error) from error


@contextmanager
def _scratch(root: Path, name: str) -> Iterator[Path]:
    """A scratch folder beside the cache entries."""
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(scratch_folder(root, f"{_HIDDEN}{name}-"))
        except OSError as error:
            raise _unwritable(root, error) from error
        yield folder


def _unwritable(root: Path, error: OSError) -> InvalidInput:
    return InvalidInput("PFL_CACHE", str(root), f"a folder that can be written ({error.strerror})")


def key_of(parts: Iterable[object]) -> str:
    """Hexadecimal hash of ``parts`` as text and the version of the cache format."""
    return hashlib.sha256(json.dumps([FORMAT, *map(str, parts)]).encode()).hexdigest()


def ordered_checksum(images: np.ndarray, labels: np.ndarray, classes: Iterable[str], n_train: int) -> str:
    """SHA-256 of a data set's decoded images in their order, its labels, classes and split."""
    digest = hashlib.sha256(json.dumps([images.shape, list(classes), n_train]).encode())
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
    return hashlib.sha256(json.dumps(images.shape[1:]).encode() + b"".join(digests)).hexdigest()
