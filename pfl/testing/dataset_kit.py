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
from pfl.data.dataset import Dataset, load
from pfl.data.datasets import DATASETS
from pfl.data.partition import Partition
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
def samples(tested: CheckedDataset) -> None:
    """A data set of the registry has the number of samples that it declares."""
    declared = DATASETS[tested.name].samples if tested.name in DATASETS else None
    if declared not in (None, len(tested.data.labels)):
        raise Violated(f"there are {len(tested.data.labels)}; the definition says {declared}")


# ---- content -------------------------------------------------------------------------------------------


@KIT.decisive
def images(tested: CheckedDataset) -> None:
    """Images are uint8 (N, C, H, W) with one or three channels; other samples are finite floats or tokens."""
    images = tested.data.images
    if images.ndim < 2 or not images.size:
        raise Violated(f"the samples are {images.shape}; expected (N, ...)")
    laid_out = images.ndim == 4 and images.shape[1] in (1, 3)
    if images.dtype == np.uint8 and not tested.data.tokens and not laid_out:
        raise Violated(f"the images are {images.shape}; expected (N, C, H, W) with 1 or 3 channels")
    if images.dtype.kind not in "fiu":
        raise Violated(f"the samples are {images.dtype}; expected uint8, floats or integers")
    if images.dtype.kind == "f" and not np.isfinite(images).all():
        raise Violated("the samples are not all finite")


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
