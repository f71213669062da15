"""A partition rule that breaks a rule of `check_partition` is told so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from pfl.core.errors import InvalidInput
from pfl.core.hyper import hyper
from pfl.core.rng import generator
from pfl.data.rule import PoolingRule, Rule, text_option
from pfl.testing import Violations, check_partition
from pfl.testing.partition_kit import KIT
from pfl.testing.synthetic import make_dataset
from tests.testing.violating import violates


@dataclass(frozen=True)
class Equal(PoolingRule):
    """Every client gets equally many samples at random."""

    def assign(self, draw):
        return np.array_split(draw.rng.permutation(len(draw.dataset.labels)), draw.clients)


@dataclass(frozen=True)
class Undescribed(Equal):
    share: float = hyper(0.5, "")


@dataclass(frozen=True)
class Shouting(Equal):
    """An option whose value is read otherwise than it is written."""

    name: str = text_option("a", "a name")

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "name", f"{self.name}!")


@dataclass(frozen=True)
class Overlapping(Rule):
    def divide(self, dataset, clients, notes):
        self.check(clients)
        parts = np.array_split(np.arange(len(dataset.labels)), clients)
        return [part[:-1] for part in parts], [part[-2:] for part in parts]


@dataclass(frozen=True)
class Seedless(Equal):
    def assign(self, draw):
        return np.array_split(np.arange(len(draw.dataset.labels)), draw.clients)

    def split_clients(self, parts, labels):
        return [part[:-1] for part in parts], [part[-1:] for part in parts]


@dataclass(frozen=True)
class Legacy(Equal):
    def assign(self, draw):
        return np.array_split(np.random.permutation(len(draw.dataset.labels)), draw.clients)  # noqa: NPY002


@dataclass(frozen=True)
class Sorting(Equal):
    def assign(self, draw):
        draw.dataset.labels.sort()
        return super().assign(draw)


@dataclass(frozen=True)
class NumberedNotes(Equal):
    def assign(self, draw):
        draw.notes.append(len(draw.dataset.labels))
        return super().assign(draw)


@dataclass(frozen=True)
class Single(Rule):
    """One training sample for each client, which leaves none for validation."""

    def divide(self, dataset, clients, notes):
        self.check(clients)
        pairs = generator(self.seed, "partition").permutation(len(dataset.labels))[: 2 * clients]
        return list(pairs.reshape(clients, 2)[:, :1]), list(pairs.reshape(clients, 2)[:, 1:])


@dataclass(frozen=True)
class AnyNumber(Equal):
    def check(self, clients, samples=None, classes=None):
        pass


@dataclass(frozen=True)
class Dividing(Rule):
    """Images that do not suffice are noticed by NumPy."""

    def divide(self, dataset, clients, notes):
        self.check(clients)
        own = generator(self.seed, "partition").permutation(len(dataset.labels))[: 10 * clients]
        own = own.reshape(clients, 10)
        return list(own[:, :8]), list(own[:, 8:])


BROKEN = {
    "options": (Undescribed, "share has no description of one line"),
    "specification": (Shouting, "name=a!,.* is read as .*name=a!!,"),
    "samples": (Overlapping, "Overlapping.divide: client 0: index 198 in both is not accepted"),
    "seed": (Seedless, "seed=0 and seed=1 give the same partition"),
    "determinism": (Legacy, "two calls give two partitions"),
    "unchanged_data": (Sorting, "labels of the data set has changed"),
    "file": (NumberedNotes, "the loaded partition differs"),
    "validation": (Single, "validation: .* client 0 has only 1"),
    "clients": (AnyNumber, "0 clients are accepted"),
    "scarcity": (Dividing, "ValueError: cannot reshape"),
}


@pytest.mark.parametrize("rule", KIT.rules)
def test_a_broken_partition_rule_is_told_so_in_one_line(rule):
    partition, line = BROKEN[rule]
    with violates(rule, line):
        check_partition(partition, rules=[rule])


def test_scarce_data_have_the_columns_that_a_rule_reads():
    labels = np.arange(240) % 4
    data = make_dataset(labels=labels, columns={"school": labels})
    check_partition("by:school", data, rules=["scarcity"])


def test_a_rule_that_divides_equally_meets_all_rules_also_on_other_data_and_by_its_name():
    check_partition(Equal)
    check_partition("equal,test=0.5")
    check_partition("equal", make_dataset((1, 1, 1), 3, 300, blank=True), clients=4)


def test_all_violated_rules_are_reported_and_none_after_samples_that_are_missing():
    @dataclass(frozen=True)
    class Empty(Rule):
        size: int = hyper(1, "")

        def divide(self, dataset, clients, notes):
            return [np.zeros(0, np.int64)] * clients, [np.zeros(0, np.int64)] * clients

    with pytest.raises(Violations) as caught:
        check_partition(Empty)
    assert caught.value.lines == {
        "options": "size has no description of one line",
        "samples": "client 0 has no training samples",
    }


def test_an_argument_that_is_no_option_is_named():
    @dataclass(frozen=True)
    class Misnamed(Equal):
        argument: ClassVar[str] = "share"

    with pytest.raises(Violations, match="options: argument is share; expected one of seed, min, test"):
        check_partition(Misnamed, rules=["options"])


@pytest.mark.parametrize(
    ("indices", "line"),
    [
        (np.array([0, 1], np.int32), "the indices of client 0 are int32; expected int64"),
        (np.array([0, 4000]), "Fixed.divide: client 0: index 4000 is not accepted"),
    ],
)
def test_indices_that_are_of_no_image_are_named(indices, line):
    @dataclass(frozen=True)
    class Fixed(Rule):
        def divide(self, dataset, clients, notes):
            return [indices] * clients, [np.array([9])] * clients

    with pytest.raises(Violations, match=line):
        check_partition(Fixed, rules=["samples"])


def test_an_unknown_partition_rule_is_no_violation():
    with pytest.raises(InvalidInput, match="did you mean 'dirichlet'"):
        check_partition("dirichle:0.1")
