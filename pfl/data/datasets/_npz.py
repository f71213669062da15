"""Reader of a user's .npz file: images and labels, optionally classes, n_train, writer and domain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pfl.data.cache import ArrayWriter, Content
from pfl.data.definition import MOST_UNNAMED
from pfl.errors import InvalidInput

_LAYOUT = (
    "arrays images, uint8 (N, H, W), (N, H, W, C), (N, C, H, W) with 1 or 3 channels or (N, C * S * S), "
    "and labels (N,)"
)


def read(files: Sequence[Path], out: ArrayWriter) -> Content:
    """Append ``images`` and ``labels`` in pooled order; the first ``n_train`` are for training.

    ``n_train`` is the number of images by default. ``classes`` and ``domains`` are names, ``writer`` and
    ``domain`` integers (N,). Nothing is unpickled.
    """
    (path,) = files
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except Exception as error:  # zip, zlib, memory and header errors have no common type
        raise InvalidInput("dataset", str(path), f"an .npz file without pickled objects ({error})") from error

    def require(holds: bool, accepted: str) -> None:
        if not holds:
            raise InvalidInput("dataset", str(path), accepted)

    require({"images", "labels"} <= arrays.keys(), _LAYOUT)
    images, labels = _channels_first(arrays["images"]), arrays["labels"]
    columns = {name: arrays[name] for name in ("labels", "writer", "domain") if name in arrays}
    require(images.dtype == np.uint8 and images.ndim == 4 and images.shape[1] in (1, 3), _LAYOUT)
    require(images.size > 0, "at least one image")
    for name, values in columns.items():
        whole = values.dtype.kind in "iu" and values.shape == (len(images),)
        require(whole and values.min() >= 0, f"an array {name} of non-negative integers, one per image")

    def names(key: str, values: np.ndarray) -> tuple[str, ...]:
        unnamed = f"an array {key} of names (K,), or integers below {MOST_UNNAMED:,} without them"
        require(key in arrays or values.max() < MOST_UNNAMED, unnamed)
        column = arrays[key] if key in arrays else np.arange(values.max() + 1)
        require(column.ndim == 1, unnamed)
        return tuple(map(str, column))

    classes = names("classes", labels)
    domains = names("domains", columns["domain"]) if "domain" in columns else ()
    require(labels.max() < len(classes), f"labels below {len(classes)}, the number of classes")
    require("domain" not in columns or columns["domain"].max() < len(domains), "one name per domain")
    n_train = arrays.get("n_train", np.array(len(images)))
    whole = n_train.dtype.kind in "iu" and n_train.ndim == 0
    accepted = f"n_train in [1, {len(images)}], an integer up to the number of images"
    require(whole and 0 < n_train <= len(images), accepted)
    out.append(images, **columns)
    return Content(classes, int(n_train), domains)


def _channels_first(images: np.ndarray) -> np.ndarray:
    if images.ndim == 2:  # square images, flat
        for channels in (1, 3):
            side = math.isqrt(images.shape[1] // channels)
            if channels * side * side == images.shape[1]:
                return images.reshape(-1, channels, side, side)
    if images.ndim == 3:
        return images[:, None]
    if images.ndim == 4 and images.shape[1] not in (1, 3) and images.shape[3] in (1, 3):
        return images.transpose(0, 3, 1, 2)
    return images
