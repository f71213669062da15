"""`from_arrays` creates a data set from arrays in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pfl.core.errors import InvalidInput
from pfl.data.cache import content_checksum, ordered_checksum, tokens_of
from pfl.data.dataset import Dataset, check_distinct, noted, warn
from pfl.data.formats import npz
from pfl.data.statistics import training_statistics


def from_arrays(
    samples: Any,
    labels: Any,
    *,
    columns: Mapping[str, Any] | None = None,
    classes: Sequence[str] | None = None,
    n_train: int | None = None,
    name: str = "samples",
) -> Dataset:
    """Create a data set from an array of samples and their labels.

    >>> heights = np.array([[1.6], [1.8], [1.7], [1.9]])
    >>> from_arrays(heights, ["a", "b", "a", "b"], columns={"school": [1, 1, 2, 2]})
    Dataset(samples: 4 samples of 1 in 2 classes)

    Args:
        samples: float features (N, F) or series (N, C, T), normalised in training by the mean and standard
            deviation of each feature or channel; tokens (N, ...), non-negative integers; or images, uint8
            (N, C, H, W). The dtype is kept, except for bfloat16, which NumPy lacks: it becomes float32.
        labels: (N,), non-negative integers or class names.
        columns: arrays (N,) of integers or strings by name, for the partition rules ``by`` and ``domain``.
        classes: the class names, if ``labels`` are integers.
        n_train: the first ``n_train`` samples are the official training set; by default all.
        name: name of the data set.

    Raises:
        InvalidInput: an array has an invalid shape, dtype or value.
    """
    arrays = {"samples": as_array(samples, "samples"), "labels": _named(labels, "labels")}
    if arrays["labels"].dtype.kind == "U":
        if classes is not None:
            raise InvalidInput("classes", list(classes), "None, as the labels are already names")
        names, arrays["labels"] = np.unique(arrays["labels"], return_inverse=True)
        classes = list(names)
    if not isinstance(columns, Mapping | None):
        raise InvalidInput(
            "columns", type(columns).__name__, "a mapping from names to integers or strings (N,)"
        )
    if classes is not None:
        arrays["classes"] = as_array(classes, "classes").astype(np.str_)
    if n_train is not None:
        arrays["n_train"] = np.array(n_train)
    data = in_memory(arrays, columns or {}, name)
    warn(data)
    return data


def in_memory(
    arrays: Mapping[str, np.ndarray], columns: Mapping[Any, Any], name: str, notes: Sequence[str] = ()
) -> Dataset:
    """The data set of ``arrays``, which are named as in an .npz file, and ``columns``.

    Args:
        columns: arrays (N,) of integers or strings by name.
        notes: the first notes of the data set.

    Raises:
        InvalidInput: an array or a column has an invalid shape, dtype, value or name.
    """
    arrays = dict(arrays)
    for column, values in ((str(given), values) for given, values in columns.items()):
        if column in arrays or column in (*npz.SAMPLES, *npz.OWN):
            raise InvalidInput("columns", column, "another name, as an array of the data set has this one")
        arrays[column] = _named(values, column)
    images, labels, checked, content = npz.checked(arrays, name)
    check_distinct(content.classes, name)
    labels, n_train = labels.astype(np.int64), content.n_train or len(images)
    moments = training_statistics(images, n_train)
    data = Dataset(
        name=name,
        images=images,
        labels=labels,
        classes=content.classes,
        n_train=n_train,
        checksum=ordered_checksum(images, labels, content.classes, n_train),
        mean=tuple(moments["mean"]),
        std=tuple(moments["std"]),
        source={"kind": "samples", "files": []},
        columns=checked,
        tokens=tokens_of(images),
        content=content_checksum(images, labels, n_train),
        notes=tuple(notes),
    )
    return noted(data)


def _named(values: Any, what: str) -> np.ndarray:
    """An array of integers or strings; an object array gets the dtype of its elements.

    Raises:
        InvalidInput: an element is neither, such as a missing value.
    """
    array = as_array(values, what)
    if array.dtype.kind != "O":
        return array
    for place, value in enumerate(array.flat):
        if not isinstance(value, str | int | np.integer):
            raise InvalidInput("dataset", f"{what} of sample {place}, {value}", "an integer or a text")
    return np.array(array.tolist())


def as_array(values: Any, what: str, accepted: str = "an array") -> np.ndarray:
    """An array, or a tensor on any device, as a NumPy array.

    Raises:
        InvalidInput: ``values`` are neither; the message names ``what``.
    """
    import torch

    try:
        if isinstance(values, torch.Tensor):
            values = values.detach().cpu()
            values = values.float() if values.dtype == torch.bfloat16 else values
        if np.ma.is_masked(values):
            raise ValueError("values are masked")
        return np.asarray(values)
    except Exception as error:  # array types of other libraries raise many types of errors
        raise InvalidInput("dataset", what, f"{accepted} ({error})") from error
