"""Reader of a user's .npz file: samples and labels, optionally classes, n_train and further columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from pfl.core.errors import InvalidInput
from pfl.core.text import listed
from pfl.data.archive import check_archive
from pfl.data.cache import ArrayWriter, Content
from pfl.data.definition import MOST_UNNAMED

SAMPLES = ("images", "samples")
"""Names for the array of samples; a file has exactly one of them."""

OWN = ("labels", "n_train", "classes", "domains")
"""Names of the arrays that are neither samples nor columns."""

_LARGEST = np.iinfo(np.int64).max
_IMAGES = (
    "arrays images, uint8 (N, H, W), (N, H, W, C), (N, C, H, W) with 1 or 3 channels or (N, C * S * S), "
    "and labels (N,)"
)
_SAMPLES = "arrays samples (N, ...) of finite floats or non-negative integers, and labels (N,)"
_DTYPES = ("float16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64")
"""Accepted dtypes of samples: those that NumPy, torch and the cache support."""


def read(files: Sequence[Path], out: ArrayWriter) -> Content:
    """Append ``images`` or ``samples`` with ``labels`` in pooled order, the training set first.

    ``n_train`` defaults to the number of samples. ``classes`` are names. Any further array (N,) of integers
    or strings is a column. With an array ``domains`` of names, ``domain`` has indices into it, which the
    names replace. Nothing is unpickled.
    """
    (path,) = files
    samples, labels, columns, content = checked(_arrays(path), str(path))
    out.expect(len(samples))
    out.append(samples, labels, **columns)
    return content


def checked(
    arrays: Mapping[str, np.ndarray], where: str
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray], Content]:
    """The samples, their labels, the columns by name, and the remaining content of ``arrays``.

    Raises:
        InvalidInput: an array of the data set ``where`` is missing or invalid.
    """

    def require(holds: object, accepted: str) -> None:
        if not holds:
            raise InvalidInput("dataset", where, accepted)

    given = [name for name in SAMPLES if name in arrays]
    accepted = f"an array {' or '.join(SAMPLES)}, labels, and possibly {', '.join(OWN[1:])} and columns (N,)"
    require(len(given) == 1 and "labels" in arrays, f"{accepted}, not {listed(list(arrays))}")
    samples, labels = _samples(arrays, require), arrays["labels"]
    require(samples.size > 0, "at least one sample with at least one value")
    columns = {name: values for name, values in arrays.items() if name not in (*SAMPLES, *OWN)}
    for name, values in columns.items():
        column = f"a column {name} of 64-bit integers or strings, one per sample"
        plain = values.dtype.kind in "iuU" and values.shape == (len(samples),)
        require(plain, f"{column} ({len(samples)}), not {_described(values)}")

    def names(key: str, name: str, values: np.ndarray) -> tuple[str, ...]:
        """The names under ``key``, by default numbers, that ``values``, the array ``name``, indexes."""
        accepted = f"an array {name} of non-negative integers, one per sample"
        whole = values.dtype.kind in "iu" and values.shape == (len(samples),)
        require(whole, f"{accepted} ({len(samples)}), not {_described(values)}")
        wrong = (values < 0) | (values > _LARGEST)
        require(not wrong.any(), f"{accepted}, not {values[wrong.argmax()]} (sample {wrong.argmax()})")
        unnamed = f"an array {key} of names (K,), or integers below {MOST_UNNAMED:,} without them"
        require(key in arrays or values.max() < MOST_UNNAMED, f"{unnamed}, not {values.max()}")
        given = arrays[key] if key in arrays else np.arange(values.max() + 1)
        require(given.ndim == 1, f"{unnamed}, not {_described(given)}")
        accepted = f"{name} below {len(given)}, the number of {key}, not {values.max()}"
        require(values.max() < len(given), accepted)
        return tuple(map(str, np.char.decode(given, "utf-8") if given.dtype.kind == "S" else given))

    classes = names("classes", "labels", labels)
    if "domains" in arrays:
        require("domain" in columns, "an array domain as well as domains")
        domains = names("domains", "domain", columns["domain"])
        require(len(set(domains)) == len(domains), "domains with distinct names")
        columns["domain"] = np.array(domains)[columns["domain"]]
    n_train = arrays.get("n_train", np.array(len(samples)))
    whole = n_train.dtype.kind in "iu" and n_train.ndim == 0
    accepted = f"n_train in [1, {len(samples)}], an integer up to the number of samples"
    require(whole and 0 < n_train <= len(samples), f"{accepted}, not {n_train}")
    return samples, labels, columns, Content(classes, int(n_train))


def _samples(arrays: Mapping[str, np.ndarray], require: Callable[[object, str], None]) -> np.ndarray:
    if "images" in arrays:
        images = _channels_first(arrays["images"])
        laid_out = images.dtype == np.uint8 and images.ndim == 4 and images.shape[1] in (1, 3)
        require(laid_out, f"{_IMAGES}, not images {_described(arrays['images'])}")
        return images
    samples = arrays["samples"]
    fits = samples.dtype.name in _DTYPES and samples.ndim > 1
    require(fits, f"{_SAMPLES}, not samples {_described(samples)}")
    last = samples.dtype == np.uint8 and samples.ndim == 4 and samples.shape[1] > samples.shape[3] in (1, 3)
    require(not last, f"images with the channels first, (N, C, H, W), not samples {_described(samples)}")
    flat = samples.dtype == np.uint8 and samples.ndim == 3
    accepted = "images (N, C, H, W), for example samples[:, None], or tokens of another integer type"
    require(not flat, f"{accepted}, not samples {_described(samples)}")
    wrong = ~np.isfinite(samples) if samples.dtype.kind == "f" else samples < 0
    first = np.unravel_index(wrong.argmax(), wrong.shape) if wrong.any() else ()
    require(not wrong.any(), f"{_SAMPLES}, not {samples[first]} (sample {first and first[0]})")
    return samples.astype(samples.dtype.newbyteorder("="), copy=False)


def _arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file by name.

    Raises:
        InvalidInput: the file is damaged or contains pickled objects.
    """
    try:
        with np.load(path, allow_pickle=False) as stored:
            check_archive(path)
            return {name: stored[name] for name in stored.files}
    except InvalidInput:  # from `check_archive`
        raise
    except Exception as error:  # zip, zlib, memory and header errors have no common type
        raise InvalidInput("dataset", str(path), f"an .npz file without pickled objects ({error})") from error


def _described(array: np.ndarray) -> str:
    return f"{array.dtype} {array.shape}"


def _channels_first(images: np.ndarray) -> np.ndarray:
    if images.ndim == 2:  # flattened square images
        for channels in (1, 3):
            side = math.isqrt(images.shape[1] // channels)
            if channels * side * side == images.shape[1]:
                return images.reshape(-1, channels, side, side)
    if images.ndim == 3:
        return images[:, None]
    if images.ndim == 4 and images.shape[1] not in (1, 3) and images.shape[3] in (1, 3):
        return images.transpose(0, 3, 1, 2)
    return images
