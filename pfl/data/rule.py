"""Base classes of the partition rules: dataclasses of options that assign the pooled images to clients."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np

from pfl.core.errors import InvalidInput, check_names
from pfl.core.hyper import check_declared, hyper
from pfl.core.rng import generator
from pfl.core.text import amount
from pfl.data.dataset import Dataset

REDRAWS = 1000
"""Maximum number of redraws when a client has too few samples."""

T = TypeVar("T")
Split = tuple[list[np.ndarray], list[np.ndarray]]
"""Training and test indices of every client."""


@dataclass(frozen=True)
class Draw:
    """Input of a rule: the data set, the number of clients, its random stream and a list for its notes."""

    dataset: Dataset
    clients: int
    rng: np.random.Generator
    notes: list[str]

    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(self.dataset.classes)

    def shuffled_classes(self, pool: slice = slice(None)) -> list[np.ndarray]:
        """The indices of each class of the pooled images in ``pool``, in random order."""
        labels = self.dataset.labels
        indices = np.arange(len(labels))[pool]
        return [self.rng.permutation(indices[labels[pool] == c]) for c in range(self.classes)]


@dataclass(frozen=True)
class Rule(ABC):
    """Base of all rules.

    Class attributes:
        argument: name of the option that ARG in ``RULE:ARG`` sets, if any.
        commas_in_argument: whether ARG may contain commas; it ends where the next option begins.
        pool: description of the images that the rule assigns.
        clients_from_data: whether the number of clients can be derived from the data.
    """

    argument: ClassVar[str | None] = None
    commas_in_argument: ClassVar[bool] = False
    pool: ClassVar[str] = "train and test merged"
    clients_from_data: ClassVar[bool] = False

    seed: int = hyper(0, "seed of the partition; `run` uses the run's seed", low=0)

    def __post_init__(self) -> None:
        for name, field in self.options().items():
            if "hyper" in field.metadata:
                field.metadata["hyper"].check(name, getattr(self, name), field.default)

    @classmethod
    def options(cls) -> dict[str, dataclasses.Field[Any]]:
        """The options of a specification by name: the argument, the rule's own and the common ones.

        Raises:
            InvalidInput: a class that declares one is not a dataclass.
        """
        check_declared(cls)
        fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
        first = [cls.argument] if cls.argument else []
        last = [name for name in ("min", "test", "unstratified", "seed") if name in fields]
        own = [name for name in fields if name not in (*first, *last)]
        return {name: fields[name] for name in (*first, *own, *last)}

    def check(self, clients: int | None, samples: int | None = None, classes: int | None = None) -> None:
        """Raise `InvalidInput` if the rule cannot be applied.

        Args:
            clients: number of clients; None means the number that the data define.
            samples, classes: number of images and classes in the pooled data; None if not known yet.
        """
        fixed = type(clients) is int and clients > 0
        if not fixed and not (clients is None and self.clients_from_data):
            raise InvalidInput("clients", repr(clients), "a positive integer")

    @abstractmethod
    def divide(self, dataset: Dataset, clients: int | None, notes: list[str]) -> Split:
        """Training and test indices of every client; appends remarks to ``notes``.

        Raises:
            InvalidInput: the data do not suffice for every client.
        """


@dataclass(frozen=True)
class PoolingRule(Rule):
    """Base of the rules that assign samples first and then split each client's samples."""

    min: int = hyper(10, "minimum number of samples of a client", low=2)
    test: float = hyper(0.25, "share of a client's samples that forms its test set", low=0.01, high=0.99)
    unstratified: bool = hyper(False, "split a client's samples at random, not class by class")

    def check(self, clients: int | None, samples: int | None = None, classes: int | None = None) -> None:
        super().check(clients, samples, classes)
        if clients is not None and samples is not None and clients * self.min > samples:
            each = f"as each has at least min={self.min} of {samples} images"
            accepted = f"at most {samples // self.min}, or a smaller min, {each}"
            raise InvalidInput("clients", clients, accepted)

    def default_clients(self, dataset: Dataset) -> int | None:
        """The number of clients that the data define, if any."""
        return None

    @abstractmethod
    def assign(self, draw: Draw) -> list[np.ndarray]:
        """The indices of every client, before the split into training and test."""

    def divide(self, dataset: Dataset, clients: int | None, notes: list[str]) -> Split:
        self.check(clients, len(dataset.labels), len(dataset.classes))
        clients = self.default_clients(dataset) if clients is None else clients
        assert clients is not None
        parts = self.assign(Draw(dataset, clients, self.stream(), notes))
        check_lists(f"{type(self).__name__}.assign", parts, clients, len(dataset.labels))
        smallest = min(len(part) for part in parts)
        if smallest < self.min:
            raise InvalidInput("min", self.min, f"at most {smallest}, the smallest client of this partition")
        return self.split_clients(parts, dataset.labels)

    def stream(self) -> np.random.Generator:
        """The random stream of `assign`."""
        return generator(self.seed, "partition")

    def split_clients(self, parts: list[np.ndarray], labels: np.ndarray) -> Split:
        """Split each client's samples into training and test sets."""
        if self.unstratified:
            return random_split(parts, self.test, self.seed)
        train, test = split(parts, labels, self.test, self.seed, "split")
        return [np.sort(own) for own in train], [np.sort(own) for own in test]


@dataclass(frozen=True)
class ClassesRule(Rule):
    """Mixin of the rules in which every client has a fixed number of classes."""

    argument: ClassVar[str | None] = "classes"

    classes: int = hyper(2, "number of classes per client", low=1)

    def check(self, clients: int | None, samples: int | None = None, classes: int | None = None) -> None:
        super().check(clients, samples, classes)
        if classes is not None and self.classes > classes:
            raise InvalidInput("classes", self.classes, f"at most {classes}, the number of classes")


def check_split(where: str, train: Any, test: Any, clients: int | None, samples: int) -> None:
    """Check the training and test indices of each of the ``clients``, as in `check_lists`.

    Raises:
        InvalidInput: lists are invalid, or a client trains on a test sample.
    """
    check_lists(where, train, clients, samples)
    check_lists(where, test, len(train), samples)
    for client, lists in enumerate(zip(train, test, strict=True)):
        if len(common := np.intersect1d(*lists)):
            accepted = "training and test samples that are disjoint"
            raise InvalidInput(f"{where}: client {client}", f"index {common[0]} in both", accepted)


def check_lists(where: str, lists: Any, clients: int | None, samples: int) -> None:
    """Check the return value of ``where``, a function of a rule: the indices of each of the ``clients``.

    Raises:
        InvalidInput: it is not a list with one array of integers in [0, ``samples``) per client.
    """
    each = "each client" if clients is None else f"each of {amount(clients, 'client')}"
    accepted = f"a list of an array (N,) for {each}, of integers from 0 to {samples - 1}"
    if not isinstance(lists, list | tuple):
        raise InvalidInput(where, f"a return value of type {type(lists).__name__}", accepted)
    if clients not in (None, len(lists)):
        raise InvalidInput(where, f"a list of {len(lists)}", accepted)
    for client, own in enumerate(lists):
        if not isinstance(own, np.ndarray) or own.ndim != 1 or own.dtype.kind not in "iu":
            kind = f"{own.dtype} {own.shape}" if isinstance(own, np.ndarray) else type(own).__name__
            raise InvalidInput(f"{where}: client {client}", kind, accepted)
        if len(outside := own[(own < 0) | (own >= samples)]):
            raise InvalidInput(f"{where}: client {client}", f"index {outside[0]}", accepted)


def redrawn(make: Callable[[], T], smallest: Callable[[T], int], minimum: int, notes: list[str]) -> T:
    """The first draw with ``minimum`` samples for every client; after `REDRAWS` redraws, the best one."""
    redraws, best = 0, make()
    while smallest(best) < minimum and redraws < REDRAWS:
        redraws += 1
        best = max(best, make(), key=smallest)
    notes.append(f"redraws: {redraws}")
    return best


def split(parts: list[np.ndarray], labels: np.ndarray, share: float, seed: int, purpose: str) -> Split:
    """Split off ``share`` of each client's samples, class by class, with one random stream per client.

    A client with n samples keeps floor(n (1 - share)), at least 1 and at most n - 1 (0 if n = 1). Its classes
    keep their proportions up to rounding (largest remainder, ties at random). If an image that a client has
    several times is split off, the client keeps no copy of it.

    Returns:
        The remaining samples of every client and those split off, in the order of ``parts``.
    """
    kept, taken = [], []
    for client, samples in enumerate(parts):
        rng = generator(seed, purpose, client=client)
        place = rng.permutation(len(samples))
        part, keep = samples[place], _kept(samples, share)
        _, label, counts = np.unique(labels[part], return_inverse=True, return_counts=True)
        quota = apportion(counts, keep, rng)
        order = np.argsort(label, kind="stable")
        rank = np.empty(len(part), np.int64)
        rank[order] = np.arange(len(part)) - np.repeat(np.cumsum(counts) - counts, counts)
        is_kept = rank < quota[label]
        own, others = (samples[np.sort(place[chosen])] for chosen in (is_kept, ~is_kept))
        kept.append(own[~np.isin(own, others)])
        taken.append(others)
    return kept, taken


def random_split(parts: list[np.ndarray], share: float, seed: int) -> Split:
    """Shuffle each client's samples and split off the last ``share`` of them, as FL-bench does.

    See data/utils/run.py of https://github.com/KarhouTam/FL-bench. A client keeps as many samples as with
    `split`.

    Returns:
        The remaining samples of every client and those split off, in random order.
    """
    shuffled = [
        generator(seed, "unstratified split", client=i).permutation(part) for i, part in enumerate(parts)
    ]
    kept, taken = zip(*(np.split(part, [_kept(part, share)]) for part in shuffled), strict=True)
    return list(kept), list(taken)


def _kept(samples: np.ndarray, share: float) -> int:
    """The number of a client's samples that remain if ``share`` of them is split off."""
    return min(max(int(round(len(samples) * (1 - share), 9)), 1), len(samples) - 1)


def apportion(weights: np.ndarray, total: int, rng: np.random.Generator) -> np.ndarray:
    """Integers proportional to ``weights`` that sum to ``total``: largest remainder, ties at random."""
    exact = weights * (total / weights.sum())
    whole: np.ndarray = np.floor(exact + 1e-9).astype(np.int64)
    order = np.lexsort((rng.random(len(weights)), -np.round(exact - whole, 9)))
    whole[order[: total - whole.sum()]] += 1
    return whole


def parsed(rule: type[Rule], options: dict[str, str]) -> Rule:
    """The rule with the options of a partition's specification; the value of a flag is an empty string.

    Raises:
        InvalidInput: an unknown option, or a value that is not accepted.
    """
    known = rule.options()
    check_names("partition option", options, known)
    return rule(**{name: _value(known[name], text) for name, text in options.items()})


def written(rule: Rule) -> str:
    """The rule's options as in a specification, including defaults: ":0.1,min=10,test=0.25,seed=0"."""
    text = ""
    for name in rule.options():
        value = getattr(rule, name)
        if name == rule.argument:
            text += f":{_text(value)}"
        elif value is True:
            text += f",{name}"
        elif value is not False:
            text += f",{name}={_text(value)}"
    return text


def text_option(default: str, about: str) -> Any:
    """A dataclass field for an option whose value is any text."""
    return dataclasses.field(default=default, metadata={"about": about})


def _text(value: Any) -> str:
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _value(field: dataclasses.Field[Any], text: str) -> Any:
    kind: type = type(field.default)
    if kind is bool:
        if text:
            raise InvalidInput(field.name, text, f"the flag alone, as in ,{field.name}")
        return True
    try:
        return kind(text)
    except ValueError:
        raise InvalidInput(field.name, text, field.metadata["hyper"].domain(field.default)) from None
