"""Synthetic federations: noisy samples of a pattern for each class, divided among clients of given sizes.

They are learnable and the same on every machine. Tests, benchmarks, the battery, dry runs and the page of
methods use them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pfl.core.rng import generator
from pfl.data.dataset import Dataset
from pfl.data.partition import Partition
from pfl.data.shape import TokenShape
from pfl.data.statistics import training_statistics

if TYPE_CHECKING:
    from pfl.models import Shape

BLOCK = 4096  # images that are drawn at once


def make_dataset(
    shape: Shape = (1, 16, 16),
    classes: int = 4,
    samples: int = 240,
    *,
    labels: np.ndarray | None = None,
    blank: bool = False,
    file: Path | None = None,
    **fields: Any,
) -> Dataset:
    """A synthetic data set.

    Args:
        shape: shape of an image, of float samples (F,), (C, T) or of tokens, `pfl.data.shape.TokenShape`.
        samples: number of samples, of each class in turn.
        labels: int (samples,), instead of ``samples``.
        blank: all pixels are 0, and the images take no memory.
        file: map the images from this file, like real ones.
        fields: fields of `Dataset`, instead of those computed from the images.
    """
    labels = np.asarray(np.arange(samples) % classes if labels is None else labels, np.int64)
    if len(shape) != 3 or isinstance(shape, TokenShape):
        images = _series_or_tokens(labels, classes, shape)
        statistics = training_statistics(images, len(images))
        fields = {**statistics, "tokens": getattr(shape, "tokens", 0), **fields}
    elif blank:
        images = np.broadcast_to(np.uint8(0), (len(labels), *shape))
        fields = {"checksum": "0" * 64, "mean": (0.5,) * shape[0], "std": (0.25,) * shape[0], **fields}
    else:
        images = _noisy(labels, classes, shape, file)
    if "checksum" not in fields:
        fields["checksum"] = hashlib.sha256(images.tobytes()).hexdigest()
    if "mean" not in fields:
        scaled = images / 255
        fields["mean"] = tuple(scaled.mean((0, 2, 3)).tolist())
        fields["std"] = tuple(scaled.std((0, 2, 3)).tolist())
    usual: dict[str, Any] = {
        "name": "synthetic",
        "classes": tuple(f"class {c}" for c in range(classes)),
        "n_train": len(labels),
        "source": {"kind": "embedded", "files": []},
    }
    return Dataset(images=images, labels=labels, **(usual | fields))


def make_clients(dataset: Dataset, sizes: Sequence[int], tests: int | Sequence[int] = 8) -> Partition:
    """Clients with two classes each, in turn.

    Args:
        sizes: number of training samples of each client.
        tests: number of test samples, for all clients or each.
    """
    classes = len(dataset.classes)
    each = [tests] * len(sizes) if isinstance(tests, int) else tests
    pools = [list(np.flatnonzero(dataset.labels == c)) for c in range(classes)]
    train, test = [], []
    for client, (size, tested) in enumerate(zip(sizes, each, strict=True)):
        own = [client % classes, (client + 1) % classes]
        drawn = [pools[own[i % 2]].pop() for i in range(size + tested)]
        train.append(np.array(drawn[:size], dtype=np.int64))
        test.append(np.array(drawn[size:], dtype=np.int64))
    return Partition("file:synthetic.json", tuple(train), tuple(test), data_checksum=dataset.checksum)


def _series_or_tokens(labels: np.ndarray, classes: int, shape: Shape) -> np.ndarray:
    """A noisy sample of its class's pattern for each label: float32, or int32 for tokens."""
    stream = generator(0, "tests")
    whole = (len(labels), *shape)
    if isinstance(shape, TokenShape):
        frequent = stream.integers(0, shape.tokens, (classes, *shape), np.int32)
        other = stream.integers(0, shape.tokens, whole, np.int32)
        return np.where(stream.random(whole) < 0.5, frequent[labels], other)
    patterns = stream.standard_normal((classes, *shape), np.float32)
    samples: np.ndarray = patterns[labels] + stream.standard_normal(whole, np.float32)
    return samples


def _noisy(labels: np.ndarray, classes: int, shape: Shape, file: Path | None) -> np.ndarray:
    """A noisy image of its class's pattern for each label, in memory or mapped from ``file``."""
    stream = generator(0, "tests")
    patterns = stream.integers(0, 120, (classes, *shape))
    whole = (len(labels), *shape)
    images = np.memmap(file, np.uint8, "w+", shape=whole) if file else np.empty(whole, np.uint8)
    for first in range(0, len(labels), BLOCK):
        part = labels[first : first + BLOCK]
        images[first : first + BLOCK] = patterns[part] + stream.integers(0, 136, (len(part), *shape))
    if file is None:
        return images
    del images
    return np.memmap(file, np.uint8, "c", shape=whole)
