"""Reader of a user's .npz file: images and labels, optionally classes, n_train, writer and domain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pfl.core.errors import InvalidInput
from pfl.core.text import listed
from pfl.data.archive import check_archive
from pfl.data.cache import ArrayWriter, Content
from pfl.data.definition import MOST_UNNAMED

KEYS = ("images", "labels", "n_train", "classes", "writer", "domain", "domains")
"""Names of the arrays; the first two are required."""

_LARGEST = np.iinfo(np.int64).max
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

    def require(holds: object, accepted: str) -> None:
        if not holds:
            raise InvalidInput("dataset", str(path), accepted)

    arrays = _arrays(path)
    images, labels = _channels_first(arrays["images"]), arrays["labels"]
    columns = {name: arrays[name] for name in ("labels", "writer", "domain") if name in arrays}
    laid_out = images.dtype == np.uint8 and images.ndim == 4 and images.shape[1] in (1, 3)
    require(laid_out, f"{_LAYOUT}, not images {_described(arrays['images'])}")
    require(images.size > 0, "at least one image")
    for name, values in columns.items():
        accepted = f"an array {name} of non-negative integers, one per image"
        whole = values.dtype.kind in "iu" and values.shape == (len(images),)
        require(whole, f"{accepted} ({len(images)}), not {_described(values)}")
        wrong = (values < 0) | (values > _LARGEST)
        require(not wrong.any(), f"{accepted}, not {values[wrong.argmax()]} (image {wrong.argmax()})")

    def names(key: str, values: np.ndarray) -> tuple[str, ...]:
        unnamed = f"an array {key} of names (K,), or integers below {MOST_UNNAMED:,} without them"
        require(key in arrays or values.max() < MOST_UNNAMED, f"{unnamed}, not {values.max()}")
        column = arrays[key] if key in arrays else np.arange(values.max() + 1)
        require(column.ndim == 1, f"{unnamed}, not {_described(column)}")
        return tuple(map(str, np.char.decode(column, "utf-8") if column.dtype.kind == "S" else column))

    classes = names("classes", labels)
    domains = names("domains", columns["domain"]) if "domain" in columns else ()
    accepted = f"labels below {len(classes)}, the number of classes, not {labels.max()}"
    require(labels.max() < len(classes), accepted)
    require("domain" in columns or "domains" not in arrays, "an array domain as well as domains")
    require("domain" not in columns or columns["domain"].max() < len(domains), "one name per domain")
    n_train = arrays.get("n_train", np.array(len(images)))
    whole = n_train.dtype.kind in "iu" and n_train.ndim == 0
    accepted = f"n_train in [1, {len(images)}], an integer up to the number of images"
    require(whole and 0 < n_train <= len(images), f"{accepted}, not {n_train}")
    out.expect(len(images))
    out.append(images, **columns)
    return Content(classes, int(n_train), domains)


def _arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file by name.

    Raises:
        InvalidInput: the file is damaged, or an array is missing, has an unknown name or is pickled.
    """
    try:
        with np.load(path, allow_pickle=False) as stored:
            check_archive(path)
            unknown = [name for name in stored.files if name not in KEYS]
            missing = [name for name in KEYS[:2] if name not in stored.files]
            if unknown or missing:
                accepted = f"arrays {' and '.join(KEYS[:2])}, and possibly {', '.join(KEYS[2:])}"
                raise InvalidInput("dataset", str(path), f"{accepted}, not {listed(stored.files)}")
            return {name: stored[name] for name in stored.files}
    except InvalidInput:
        raise
    except Exception as error:  # zip, zlib, memory and header errors have no common type
        raise InvalidInput("dataset", str(path), f"an .npz file without pickled objects ({error})") from error


def _described(array: np.ndarray) -> str:
    return f"{array.dtype} {array.shape}"


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
