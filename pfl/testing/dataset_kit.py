"""The conformance kit for data sets: `check_dataset`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import numpy as np

from pfl.core.config import Config, Execution
from pfl.core.errors import DataWarning
from pfl.core.rng import generator
from pfl.data.cache import content_checksum, ordered_checksum, tokens_of
from pfl.data.dataset import Dataset, check_distinct, class_notes, load
from pfl.data.datasets import DATASETS
from pfl.data.partition import Partition
from pfl.data.statistics import training_statistics
from pfl.models import fitting
from pfl.run.simulate import simulate_configs
from pfl.testing.kit import Kit, Violated, check_finite

CLIENTS, SAMPLES = 4, 24
"""Clients of the simulation, and their samples."""


@dataclass(frozen=True)
class CheckedDataset:
    """A data set in memory, or one that is read.

    Attributes:
        name: a name of `pfl datasets`, or a path; "" means a data set in memory.
        given: the data set in memory.
        source: as in `pfl.load`.
        cache: a folder for a second decoding.
    """

    name: str
    given: Dataset | None
    source: str | Path | None
    cache: str

    @cached_property
    def data(self) -> Dataset:
        """The images, decoded into the user's cache if they are read."""
        return self.given or self.read()

    def read(self) -> Dataset:
        """The data set as `pfl.load` returns it."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)
            return load(self.name, source=self.source, progress=False)

    def read_again(self) -> Dataset:
        """The same, decoded into a separate cache."""
        with patch.dict(os.environ, {"PFL_CACHE": self.cache}):
            return self.read()


KIT: Kit[CheckedDataset] = Kit()


def check_dataset(
    dataset: str | Path | Dataset, source: str | Path | None = None, rules: Sequence[str] | None = None
) -> None:
    """Check that a data set meets every rule of `pfl.testing.dataset_kit`.

    Args:
        dataset: a name of `pfl datasets`, a path to your own data, or a data set. The rules about reading do
            not apply to a data set in memory.
        source: where the files of a named data set are, as in `pfl.load`.
        rules: names of rules; by default all, which decodes the files once more.

    Raises:
        Violations: with one line for each violated rule.
        InvalidInput: a rule is unknown.
    """
    given = dataset if isinstance(dataset, Dataset) else None
    name = "" if given else str(dataset)
    with TemporaryDirectory() as cache:
        KIT.check(given.name if given else name, CheckedDataset(name, given, source, cache), rules)


# ---- reading -------------------------------------------------------------------------------------------


@KIT.rule
def sources(tested: CheckedDataset) -> None:
    """Every official file that is downloaded over plain http has a known checksum."""
    files = DATASETS[tested.name].files if tested.name in DATASETS else ()
    for file in files:
        if file.md5 is None and not file.url.startswith("https:"):
            raise Violated(f"{file.url} has no md5; expected one, or an https address")


@KIT.decisive
def reading(tested: CheckedDataset) -> None:
    """Decoding the files again gives the same images, labels and notes."""
    if tested.given:
        return
    data, again = tested.data, tested.read_again()
    if (again.checksum, again.content) != (data.checksum, data.content):
        raise Violated("the images or labels differ when they are decoded again")
    if again.notes != data.notes:
        raise Violated("the notes differ when the files are decoded again")


@KIT.rule
def definition(tested: CheckedDataset) -> None:
    """A data set of the registry has the number of images, their shape and the classes that it declares."""
    if tested.name not in DATASETS:
        return
    declared, data = DATASETS[tested.name], tested.data
    for name, actual, expected in (
        ("shape", data.shape, declared.shape),
        ("classes", len(data.classes), declared.classes),
        ("samples", len(data.labels), declared.samples),
    ):
        if expected not in (None, actual):
            raise Violated(f"{name} is {actual}; the definition says {expected}")


@KIT.rule
def mapping(tested: CheckedDataset) -> None:
    """A write to the images does not reach the cache."""
    if tested.given:
        return
    tested.read_again().images[:1] += 1
    again = tested.read_again()
    if ordered_checksum(again.images, again.labels, again.classes, again.n_train) != again.checksum:
        raise Violated("the cached images have changed")


# ---- content -------------------------------------------------------------------------------------------


@KIT.decisive
def images(tested: CheckedDataset) -> None:
    """Images are uint8 (N, C, H, W) with one or three channels; other samples are finite floats or tokens."""
    images, tokens = tested.data.images, tokens_of(tested.data.images)
    if images.ndim < 2 or not images.size:
        raise Violated(f"the samples are {images.shape}; expected (N, ...)")
    laid_out = images.ndim == 4 and images.shape[1] in (1, 3)
    if images.dtype == np.uint8 and not tested.data.tokens and not laid_out:
        raise Violated(f"the images are {images.shape}; expected (N, C, H, W) with 1 or 3 channels")
    if images.dtype.kind not in "fiu":
        raise Violated(f"the samples are {images.dtype}; expected uint8, floats or integers")
    if images.dtype.kind == "f" and not np.isfinite(images).all():
        raise Violated("the samples are not all finite")
    if tested.data.tokens != tokens:
        raise Violated(f"tokens is {tested.data.tokens}; expected {tokens}")


@KIT.decisive
def labels(tested: CheckedDataset) -> None:
    """The labels are int64 (N,), each the index of a class."""
    labels, count = tested.data.labels, len(tested.data.images)
    if labels.shape != (count,) or labels.dtype != np.int64:
        raise Violated(f"the labels are {labels.dtype} {labels.shape}; expected int64 ({count},)")
    if labels.min() < 0 or labels.max() >= len(tested.data.classes):
        ends = f"{labels.min()} to {labels.max()}"
        raise Violated(f"the labels are {ends}; expected 0 to {len(tested.data.classes) - 1}")


@KIT.rule
def names(tested: CheckedDataset) -> None:
    """Classes have different names."""
    check_distinct(tested.data.classes, tested.data.name)


@KIT.rule
def training_set(tested: CheckedDataset) -> None:
    """The first ``n_train`` images, at least one, are the training set."""
    count = len(tested.data.labels)
    if type(tested.data.n_train) is not int or not 1 <= tested.data.n_train <= count:
        raise Violated(f"n_train is {tested.data.n_train!r}; expected an integer in [1, {count}]")


@KIT.rule
def columns(tested: CheckedDataset) -> None:
    """Columns are integers or text (N,)."""
    count = len(tested.data.labels)
    for name, values in tested.data.columns.items():
        if values.shape != (count,) or values.dtype.kind not in "iuU":
            raise Violated(
                f"{name} is {values.dtype} {values.shape}; expected integers or strings ({count},)"
            )


@KIT.rule
def checksum(tested: CheckedDataset) -> None:
    """``content`` matches the images and labels; so does ``checksum``, if the data are read from files."""
    data = tested.data
    computed = ordered_checksum(data.images, data.labels, data.classes, data.n_train)
    if not tested.given and data.checksum != computed:
        raise Violated("checksum is not that of the images, labels, classes and n_train")
    if data.content and data.content != content_checksum(data.images, data.labels, data.n_train):
        raise Violated("content is not the checksum of the images and labels")


@KIT.rule
def statistics(tested: CheckedDataset) -> None:
    """``mean`` and ``std`` are those of the training samples, per channel; of images, scaled to [0, 1]."""
    expected = training_statistics(tested.data.images, tested.data.n_train)
    for name, values in expected.items():
        actual = getattr(tested.data, name)
        if not np.allclose(actual, values, rtol=1e-9, atol=1e-12):
            raise Violated(f"{name} is {tuple(actual)}; expected {tuple(values)}")


@KIT.rule
def notes(tested: CheckedDataset) -> None:
    """``notes`` state which classes have no images, no training images or no test images."""
    data = tested.data
    for note in class_notes(data):
        if note not in data.notes:
            raise Violated(f"no note says {note!r}")


@KIT.rule
def simulation(tested: CheckedDataset) -> None:
    """A small federation on some of the images is simulated with finite losses."""
    data = tested.data
    chosen = generator(0, "conformance").permutation(len(data.labels))[: CLIENTS * SAMPLES]
    parts = np.array_split(chosen, CLIENTS)
    train, test = (tuple(part[k::2] for part in parts) for k in (0, 1))
    clients = Partition("file:synthetic.json", train, test, data.checksum)
    config = Config(model=fitting(data.shape), rounds=2, epochs=1, batch_size=4, participation=1.0, lr=0.01)
    ((result,),) = simulate_configs([config], data, clients, (0,), Execution(device="cpu"))
    check_finite(result)
