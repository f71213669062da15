"""Partitions: the pooled images on which each client trains and tests."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pfl.core.errors import InvalidInput
from pfl.core.files import replacing, writing
from pfl.data.dataset import Dataset
from pfl.data.partitions import PARTITIONS
from pfl.data.rule import Rule, check_split, parsed, split, written

RUN = "run"
"""Value of ``seed`` in a specification that gives each seed of a simulation its own partition."""


@dataclass(frozen=True, eq=False)
class Partition:
    """The training and test samples of every client, as lists of indices.

    >>> partition = pfl.make_partition("pathological:2", pfl.load("digits"), clients=5)
    >>> partition.clients, int(partition.sizes.sum())
    (5, 1345)

    Attributes:
        spec: the canonical specification, e.g. "dirichlet:0.1,min=10,test=0.25,seed=0".
        train, test: int64 indices into the pooled images, one array per client.
        data_checksum: checksum of the data set that the indices refer to.
        notes: remarks of the rule: redraws, samples moved or left out, duplicates.
    """

    spec: str
    train: tuple[np.ndarray, ...]
    test: tuple[np.ndarray, ...]
    data_checksum: str
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Partition({self.spec}: {self.clients} clients)"

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(self.train)

    @property
    def sizes(self) -> np.ndarray:
        """Training samples of each client, int64 (clients,)."""
        return np.array([len(indices) for indices in self.train])

    @property
    def checksum(self) -> str:
        """SHA-256 of the index lists."""
        digest = hashlib.sha256()
        for indices in (*self.train, *self.test):
            digest.update(len(indices).to_bytes(8, "little"))
            digest.update(indices.astype("<i8").tobytes())
        return digest.hexdigest()

    def with_validation(self, share: float, labels: np.ndarray, purpose: str = "validation") -> Partition:
        """This partition with validation sets in place of the test sets, for a search.

        The validation sets are stratified and drawn from a separate random stream, keyed by the partition's
        seed. The result does not contain the test sets.

        Args:
            share: share of each client's training samples used for validation, at least one sample.
            labels: labels of all pooled images, (N,).
            purpose: names the random stream, and the share in errors.

        Raises:
            InvalidInput: the share is not in (0, 1), or leaves a client without training samples.
        """
        if not 0 < share < 1:
            raise InvalidInput(purpose, share, "a number in (0, 1)")
        _, rule = parse_spec(self.spec)
        train, validation = split(list(self.train), labels, share, rule.seed, purpose)
        if (client := next((client for client, own in enumerate(train) if not len(own)), None)) is not None:
            images = len(np.unique(self.train[client]))
            accepted = f"a share that leaves every client training samples; client {client} has only {images}"
            raise InvalidInput(purpose, share, accepted)
        return dataclasses.replace(self, train=tuple(train), test=tuple(validation))

    def save(self, path: Path) -> None:
        """Write the partition to an .npz file atomically. Equal partitions give identical bytes.

        Raises:
            InvalidInput: the file cannot be written.
        """
        arrays = {
            "spec": np.array(self.spec),
            "pool": np.array(parse_spec(self.spec)[1].pool),
            "data_checksum": np.array(self.data_checksum),
            "checksum": np.array(self.checksum),
            "notes": np.array(self.notes, dtype=np.str_),
        }
        for name, lists in (("train", self.train), ("test", self.test)):
            arrays[name] = np.concatenate(lists)
            arrays[f"{name}_sizes"] = np.array([len(indices) for indices in lists])
        with writing(path), replacing(path) as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)

    @classmethod
    def load(cls, path: Path) -> Partition:
        """Read a partition that `save` wrote.

        Raises:
            InvalidInput: the file is missing or damaged.
        """
        try:
            with np.load(path, allow_pickle=False) as stored:
                lists = {
                    name: tuple(np.split(stored[name], np.cumsum(stored[f"{name}_sizes"])[:-1]))
                    for name in ("train", "test")
                }
                partition = cls(
                    spec=str(stored["spec"]),
                    data_checksum=str(stored["data_checksum"]),
                    notes=tuple(map(str, stored["notes"])),
                    **lists,
                )
                intact = partition.checksum == str(stored["checksum"])
        except FileNotFoundError:
            raise InvalidInput("partition", str(path), "an existing file") from None
        except Exception as error:  # zip, zlib, pickle and key errors have no common type
            raise InvalidInput("partition", str(path), f"a partition written by pfl ({error})") from None
        if not intact:
            raise InvalidInput("partition", str(path), "index lists that match their checksum")
        return partition

    def statistics(self, labels: np.ndarray, n_classes: int) -> dict[str, Any]:
        """Statistics of sizes and classes, over training and test samples together.

        Args:
            labels: labels of all pooled images, (N,).

        Returns:
            ``clients``; ``samples``, ``train``, ``test``: totals; ``size``: mean, std, min and max over
            clients; ``classes``: mean, min and max number of classes per client; ``label_cosine``: mean over
            pairs of clients of the cosine of their class counts; ``test_samples_of_untrained_classes``:
            number of test samples of classes that their client does not train on.
        """
        counts = self.class_counts(labels, n_classes)
        trained = counts["train"] > 0
        both = counts["train"] + counts["test"]
        size, classes = both.sum(1), (both > 0).sum(1)
        unit = both / np.linalg.norm(both, axis=1, keepdims=True)
        pairs = self.clients * (self.clients - 1)
        return {
            "clients": self.clients,
            "samples": int(size.sum()),
            "train": int(counts["train"].sum()),
            "test": int(counts["test"].sum()),
            "size": {**_spread(size), "std": float(size.std())},
            "classes": _spread(classes),
            "label_cosine": float((np.square(unit.sum(0)).sum() - self.clients) / pairs) if pairs else 1.0,
            "test_samples_of_untrained_classes": int(counts["test"][~trained].sum()),
        }

    def class_counts(self, labels: np.ndarray, n_classes: int) -> dict[str, np.ndarray]:
        """Number of samples per client and class, in ``train`` and ``test``: int64 (clients, classes)."""
        return {
            name: np.stack([np.bincount(labels[indices], minlength=n_classes) for indices in lists])
            for name, lists in (("train", self.train), ("test", self.test))
        }


Division = Partition | Mapping[int, Partition]
"""One partition for all seeds of a simulation, or a mapping with one partition per seed."""


def of_seed(division: Division, seed: int) -> Partition:
    """The partition of a seed."""
    return division if isinstance(division, Partition) else division[seed]


def parse_spec(spec: str, run_seed: int | None = None) -> tuple[str, Rule]:
    """The canonical form of ``RULE[:ARG][,key=value|flag]...`` with its defaults written out, and its rule.

    >>> parse_spec("dirichlet:0.1,seed=3")[0]
    'dirichlet:0.1,min=10,test=0.25,seed=3'

    Args:
        run_seed: replaces the ``run`` in ``seed=run``; None leaves it.

    Raises:
        InvalidInput: an unknown rule or option, or a value that is not accepted.
    """
    head, *rest = spec.split(",")
    name, colon, argument = head.partition(":")
    rule = PARTITIONS[name]
    options = {}
    if colon:
        if rule.argument is None:
            raise InvalidInput("partition", head, f"{name} without an argument")
        while rule.commas_in_argument and rest and rest[0].partition("=")[0] not in rule.options():
            argument = f"{argument},{rest.pop(0)}"
        options[rule.argument] = argument
    for option in rest:
        key, _, value = option.partition("=")
        if key[:1].isdecimal():
            raise InvalidInput("partition", spec, "a point in numbers, as in 0.5: a comma begins an option")
        if not key:
            raise InvalidInput("partition", spec, "an option after each comma")
        if key in options:
            accepted = f"one value, not {options[key]} as well" if options[key] else "the flag only once"
            raise InvalidInput(key, value or key, accepted)
        options[key] = value
    follows = options.get("seed") == RUN
    if follows:
        if name == "file":
            raise InvalidInput("seed", RUN, "a number, because the lists of a file are the same in every run")
        options["seed"] = str(run_seed or 0)
    configured = parsed(rule, options)
    canonical = name + written(configured)
    if follows and run_seed is None:
        canonical = f"{canonical.rpartition('=')[0]}={RUN}"
    return canonical, configured


def follows_run(spec: str) -> bool:
    """Whether each seed of a simulation has its own partition, i.e. ``spec`` contains ``seed=run``."""
    return parse_spec(spec)[0].endswith(f",seed={RUN}")


def check_partition(
    spec: str, clients: int | None, samples: int | None = None, classes: int | None = None
) -> None:
    """Check everything that can be checked before the data are read.

    Args:
        spec: ``RULE[:ARG][,key=value|flag]...``.
        clients: number of clients; None if the rule takes it from the data.
        samples, classes: number of images and classes of the data set, if known.

    Raises:
        InvalidInput: the specification or the number of clients is not accepted.
    """
    parse_spec(spec)[1].check(clients, samples, classes)


def make_partition(
    spec: str, dataset: Dataset, clients: int | None = None, run_seed: int | None = None
) -> Partition:
    """Partition a data set over its clients; the same arguments give the same index lists.

    >>> make_partition("dirichlet:0.5", pfl.load("digits"), clients=4)
    Partition(dirichlet:0.5,min=10,test=0.25,seed=0: 4 clients)

    Args:
        clients: the number of clients; by default as the data define it (rules such as ``by`` and ``file``).
        run_seed: replaces the ``run`` in ``seed=run``.

    Raises:
        InvalidInput: the data do not suffice for every client's classes or minimum, ``seed=run`` is given
            without a run, or the rule does not return indices of every client or trains a client on its test
            samples.
    """
    if not isinstance(spec, str):
        raise InvalidInput("partition", spec, "a rule of `pfl partitions`, as in 'dirichlet:0.1'")
    if not isinstance(dataset, Dataset):
        raise InvalidInput("dataset", dataset, "a data set, as pfl.load returns")
    if run_seed is None and follows_run(spec):
        raise InvalidInput("seed", RUN, "a number, because there is no run to take the seed from")
    canonical, rule = parse_spec(spec, run_seed)
    notes: list[str] = []
    divided = rule.divide(dataset, clients, notes)
    where = f"{type(rule).__name__}.divide"
    if not isinstance(divided, tuple) or len(divided) != 2:
        accepted = "the lists of training indices and those of test indices"
        raise InvalidInput(where, f"a return value of type {type(divided).__name__}", accepted)
    train, test = divided
    check_split(where, train, test, clients, len(dataset.labels))
    return Partition(canonical, tuple(train), tuple(test), dataset.checksum, tuple(notes))


def make_division(spec: str, dataset: Dataset, clients: int | None, seeds: Iterable[int]) -> Division:
    """The partition of a data set for all ``seeds``, or one per seed if ``spec`` contains ``seed=run``."""
    if follows_run(spec):
        return {seed: make_partition(spec, dataset, clients, seed) for seed in seeds}
    return make_partition(spec, dataset, clients)


def _spread(values: np.ndarray) -> dict[str, float]:
    return {"mean": float(values.mean()), "min": int(values.min()), "max": int(values.max())}
