"""`from_samples` creates a data set from samples in memory, e.g. of torch or Hugging Face."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np

from pfl.core.errors import InvalidInput
from pfl.data.arrays import as_array, in_memory
from pfl.data.cache import Changes
from pfl.data.dataset import Dataset, warn
from pfl.data.definition import MOST_UNNAMED
from pfl.data.pixels import ROUNDED, check, converted, is_grey
from pfl.data.resize import Resize

_ROUNDING = 0.01
"""Largest distance of a float from one of the 256 levels that is regarded as its own rounding error."""

IMAGE, LABEL = ("image", "img"), ("label", "labels")
"""Accepted keys of a sample that is a mapping."""


def from_samples(samples: Any, size: tuple[int, int] | None = None, crop: bool = False) -> Dataset:
    """Create a data set from a map-style `torch.utils.data.Dataset`, a Hugging Face ``Dataset`` or a list.

    >>> images = np.zeros((6, 8, 8), np.uint8)
    >>> from_samples(list(zip(images, [0, 1] * 3))).shape
    (1, 8, 8)
    >>> series = [{"sample": np.zeros((6, 50)), "label": i % 2, "subject": i // 3} for i in range(6)]
    >>> from_samples(series).shape
    (6, 50)

    Args:
        samples: must have a length; each item is ``(image, label)`` or a mapping with ``label`` and either
            ``image`` or ``sample``. Integers and strings under other keys of all mappings are columns, for
            the partition rules ``by`` and ``domain``. A ``sample`` is an array of floats or
            tokens as in `pfl.from_arrays` and is kept unchanged, as is a one-dimensional array in a pair. An
            image is an 8-bit Pillow image, a uint8 array (H, W), (H, W, C) or (C, H, W), or an array of these
            shapes with floats in [0, 1], as from ``ToTensor``, which are rounded to 8 bits. An array whose
            first axis is 1 or 3 is (C, H, W). Tensors may be on any device and require a gradient. All
            samples are pooled.
        size: height and width to which images are resized with a Lanczos filter.
        crop: keep the aspect ratio, and crop the excess on two opposite sides.

    Raises:
        InvalidInput: a sample has another format, or the samples differ in shape.
    """
    if not hasattr(samples, "__len__") or not hasattr(samples, "__getitem__"):
        accepted = "a name of `pfl datasets`, a path, a data set, or samples with a length"
        raise InvalidInput("dataset", samples, accepted)
    sides = size if isinstance(size, tuple) else ()
    whole = all(isinstance(side, int | np.integer) and side > 0 for side in sides)
    if size is not None and not (len(sides) == 2 and whole):
        raise InvalidInput("size", size, "(height, width), positive integers")
    images, labels, columns, kinds = [], [], [], set()
    changes = Changes()
    for i in range(len(samples)):
        try:
            sample = samples[i]
        except KeyError as error:  # of a mapping or a data frame
            accepted = "samples indexed by integers, such as one split; for a table, use pfl.from_table"
            raise InvalidInput("dataset", type(samples).__name__, accepted) from error
        value, is_image, label, own = _parts(sample, i)
        labels.append(_label(label, i))
        columns.append(own)
        kinds.add(is_image)
        if is_image:
            pixels = pixels_of(value, i, changes)
            images.append(Resize(*size, crop).array(pixels) if size else pixels)
        elif size:
            raise InvalidInput("size", size, f"None, because sample {i} is not an image")
        else:
            images.append(array_of(value, i))
        if len(kinds) > 1:
            raise InvalidInput("dataset", f"sample {i}", "images only, or no image")
    shapes = sorted({image.shape for image in images})
    if len(shapes) != 1:
        given = " and ".join("x".join(map(str, shape)) for shape in shapes) or "none"
        raise InvalidInput("dataset", given, "samples of one shape (size=(height, width) resizes images)")
    classes = _classes(samples, max(labels) + 1)
    shared = [name for name in columns[0] if all(name in own for own in columns)]
    by_name = {name: [own[name] for own in columns] for name in shared}
    left_out = [
        f"column {name} left out: sample {[name in own for own in columns].index(False)} does not have it"
        for name in dict.fromkeys(name for own in columns for name in own if name not in shared)
    ]
    arrays = {
        "images" if is_image else "samples": np.stack(images),
        "labels": np.array(labels),
        "classes": np.array(classes),
    }
    data = in_memory(arrays, by_name, "samples", (*changes.notes(), *left_out))
    warn(data)
    return data


def _parts(sample: Any, place: int) -> tuple[Any, bool, Any, dict[str, Any]]:
    """The image or other array, whether it is an image, its label, and further columns."""
    if isinstance(sample, Mapping):
        known = [name for name in (*IMAGE, "sample") if sample.get(name) is not None]
        label = next((sample[name] for name in LABEL if name in sample), None)
        if known and label is not None:
            others = {name: sample[name] for name in sample if name not in (*known, *LABEL)}
            columns = {name: value for name, value in others.items() if _is_plain(value)}
            return sample[known[0]], known[0] in IMAGE, label, columns
    elif isinstance(sample, tuple | list) and len(sample) == 2:
        return sample[0], getattr(sample[0], "ndim", 0) != 1, sample[1], {}
    accepted = "(image, label), or a mapping with label and image or sample"
    raise InvalidInput("dataset", f"sample {place}", accepted)


def _is_plain(value: Any) -> bool:
    return isinstance(value, int | str | np.integer) and not isinstance(value, bool)


def _label(label: Any, place: int) -> int:
    try:
        number = operator.index(label)
    except TypeError:
        number = -1
    if not 0 <= number < MOST_UNNAMED:
        accepted = f"integers from 0 to {MOST_UNNAMED - 1:,}"
        raise InvalidInput("dataset", f"label {label!r} of sample {place}", accepted)
    return number


def pixels_of(image: Any, place: int, changes: Changes) -> np.ndarray:
    """An image that `from_samples` accepts, as uint8 (C, H, W); ``changes`` records its changes.

    Raises:
        InvalidInput: it is not such an image.
    """
    from PIL import Image

    name = f"sample {place}"
    if isinstance(image, Image.Image):
        try:
            check(image)
            mode = "L" if is_grey(image) else "RGB"
            image, own = converted(image, mode)
        except Exception as error:  # decoders raise many types of errors
            raise InvalidInput("dataset", f"{name} of mode {image.mode}", f"an image ({error})") from error
        for change in own:
            changes.add(change, name)
        array = np.asarray(image)
        return array[None] if mode == "L" else array.transpose(2, 0, 1)
    pixels = array_of(image, place)
    if pixels.dtype.kind == "f" and pixels.size and pixels.min() >= 0 and pixels.max() <= 1:
        rounded = np.rint(pixels * 255)
        if np.abs(pixels * 255 - rounded).max() > max(_ROUNDING, 255 * np.finfo(pixels.dtype).eps):
            changes.add(ROUNDED, name)
        pixels = rounded.astype(np.uint8)
    if pixels.ndim == 2:
        pixels = pixels[None]
    elif pixels.ndim == 3 and pixels.shape[0] not in (1, 3):
        pixels = pixels.transpose(2, 0, 1)
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[0] not in (1, 3):
        given = f"{name}, {pixels.dtype} {pixels.shape}"
        if pixels.dtype.kind == "f" and pixels.size:
            given = f"{given} from {pixels.min():g} to {pixels.max():g}"
        accepted = (
            "an image of uint8 or of floats in [0, 1], with 1 or 3 channels; pfl.from_arrays takes others"
        )
        raise InvalidInput("dataset", given, accepted)
    return pixels


def array_of(image: Any, place: int) -> np.ndarray:
    """The values of an array or tensor; raises `InvalidInput` for anything else."""
    return as_array(image, f"sample {place}, {type(image).__name__}", "an image as an array")


def _classes(samples: Any, least: int) -> tuple[str, ...]:
    """The class names given by torchvision or Hugging Face, else numbers."""
    features = getattr(samples, "features", None)
    labels = [features[name] for name in LABEL if name in features] if isinstance(features, Mapping) else []
    given = (getattr(samples, "classes", None), *(getattr(label, "names", None) for label in labels))
    lists = (names for names in given if isinstance(names, list | tuple | np.ndarray) and len(names))
    names = next(lists, range(least))  # other data sets have a number or a set of classes
    if len(names) < least:
        raise InvalidInput(
            "dataset", f"label {least - 1}", f"labels below {len(names)}, the number of classes"
        )
    return tuple(map(str, names))
