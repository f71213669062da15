"""The conformance kit for partition rules: `check_partition`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from pfl.core.errors import InvalidInput
from pfl.core.hyper import check_declared
from pfl.data.dataset import Dataset
from pfl.data.partition import Partition, make_partition, parse_spec
from pfl.data.partitions import PARTITIONS
from pfl.data.rule import Rule
from pfl.run.api import registered_name
from pfl.testing.kit import Kit, Violated, random_state
from pfl.testing.synthetic import make_dataset


@dataclasses.dataclass(frozen=True)
class CheckedPartition:
    """A partition rule with its options, and the data that it divides."""

    spec: str
    dataset: Dataset
    clients: int

    @property
    def rule(self) -> type[Rule]:
        """The class of the rule."""
        return PARTITIONS[self.spec.partition(",")[0].partition(":")[0]]

    def make(self, options: str = "") -> Partition:
        """The partition, with further ``options``."""
        return make_partition(self.spec + options, self.dataset, self.clients)


KIT: Kit[CheckedPartition] = Kit()


def check_partition(
    rule: str | type[Rule],
    dataset: Dataset | None = None,
    clients: int = 20,
    rules: Sequence[str] | None = None,
) -> None:
    """Check that a partition rule meets every rule of `pfl.testing.partition_kit`.

    Args:
        rule: a class, or a specification without ``seed``, such as ``dirichlet:0.1``.
        dataset: the data; by default 3,000 training and 1,000 test images of ten classes, by 100 writers, in
            four domains.
        clients: the number of clients.
        rules: names of rules of the kit; by default all, which takes less than a second.

    Raises:
        Violations: with one line for each violated rule.
        InvalidInput: the partition rule or a rule of the kit is unknown.
    """
    spec = rule if isinstance(rule, str) else registered_name(PARTITIONS, rule, rule.__name__.lower())
    tested = CheckedPartition(spec, dataset or pooled_images(), clients)
    KIT.check(tested.rule.__name__, tested, rules)


def pooled_images() -> Dataset:
    """3,000 training and 1,000 test images of ten classes, by 100 writers, in four domains."""
    rng = np.random.default_rng(0)
    return make_dataset(
        (1, 1, 1),
        classes=10,
        labels=np.concatenate((np.repeat(np.arange(10), 300), np.repeat(np.arange(10), 100))),
        blank=True,
        n_train=3000,
        columns={
            "writer": rng.integers(0, 100, 4000),
            "domain": np.array(["a", "b", "c", "d"])[rng.integers(0, 4, 4000)],
        },
    )


@KIT.rule
def options(tested: CheckedPartition) -> None:
    """Every option is declared with `hyper` or `text_option` in a frozen dataclass, with a description."""
    rule = tested.rule
    check_declared(rule)
    fields = [field.name for field in dataclasses.fields(rule)]
    if rule.argument is not None and rule.argument not in fields:
        raise Violated(f"argument is {rule.argument}; expected one of {', '.join(fields)}")
    for name, field in rule.options().items():
        declared = field.metadata.get("hyper")
        about = declared.about if declared else field.metadata.get("about", "")
        if not about.strip() or "\n" in about:
            raise Violated(f"{name} has no description of one line")
        if declared:
            declared.check(name, field.default, field.default)


@KIT.rule
def specification(tested: CheckedPartition) -> None:
    """The specification with all defaults written out gives the same rule."""
    canonical, rule = parse_spec(tested.spec)
    again, same = parse_spec(canonical)
    if (again, same) != (canonical, rule):
        raise Violated(f"{canonical} is read as {again}")


@KIT.decisive
def samples(tested: CheckedPartition) -> None:
    """Every client gets training and test samples of the data set, and no sample is both."""
    _check_samples(tested.make())


def _check_samples(partition: Partition) -> None:
    for client, (train, test) in enumerate(zip(partition.train, partition.test, strict=True)):
        for name, indices in (("training", train), ("test", test)):
            if not len(indices):
                raise Violated(f"client {client} has no {name} samples")
            if indices.dtype != np.int64:
                raise Violated(f"the indices of client {client} are {indices.dtype}; expected int64")


@KIT.rule
def seed(tested: CheckedPartition) -> None:
    """The seed decides the partition: another seed gives another one."""
    if tested.make(",seed=0").checksum == tested.make(",seed=1").checksum:
        raise Violated("seed=0 and seed=1 give the same partition")


@KIT.rule
def determinism(tested: CheckedPartition) -> None:
    """The same seed gives the same partition, whatever the global random states are."""
    checksums = set()
    for state in (1, 2):
        with random_state(state):
            checksums.add(tested.make().checksum)
    if len(checksums) > 1:
        raise Violated("two calls give two partitions; draw from pfl.core.rng.generator(self.seed, ...)")


@KIT.rule
def unchanged_data(tested: CheckedPartition) -> None:
    """The data set is not changed."""
    data = tested.dataset
    columns = {"labels": data.labels, **data.columns}
    before = {name: values.copy() for name, values in columns.items()}
    tested.make()
    for name, values in before.items():
        if not np.array_equal(values, columns[name]):
            raise Violated(f"{name} of the data set has changed")


@KIT.rule
def file(tested: CheckedPartition) -> None:
    """The partition is the same after it has been saved and loaded."""
    partition = tested.make()
    with TemporaryDirectory() as folder:
        partition.save(Path(folder) / "partition.npz")
        loaded = Partition.load(Path(folder) / "partition.npz")
    names = ("checksum", "data_checksum", "spec", "notes")
    if any(getattr(loaded, name) != getattr(partition, name) for name in names):
        raise Violated("the loaded partition differs from the saved one")


@KIT.rule
def validation(tested: CheckedPartition) -> None:
    """Every client has enough training samples to hold out a fifth of them for a search."""
    search = tested.make().with_validation(0.2, tested.dataset.labels)
    for client, (train, test) in enumerate(zip(search.train, search.test, strict=True)):
        if not len(train) or not len(test):
            raise Violated(f"client {client} has {len(train)} training and {len(test)} validation samples")


@KIT.rule
def clients(tested: CheckedPartition) -> None:
    """An invalid number of clients is refused; without one, the rule takes it from the data or refuses."""
    _, rule = parse_spec(tested.spec)
    for count in (0, -1):
        try:
            rule.check(count)
        except InvalidInput:
            continue
        raise Violated(f"{count} clients are accepted; call super().check(clients, ...)")
    try:
        rule.check(None)
    except InvalidInput:
        if rule.clients_from_data:
            raise
    else:
        if not rule.clients_from_data:
            raise Violated("no number of clients is accepted, but clients_from_data is False")
        _check_samples(make_partition(tested.spec, tested.dataset, None))


@KIT.rule
def scarcity(tested: CheckedPartition) -> None:
    """Too few images for all clients raise `InvalidInput`; no client is left without samples."""
    few = 2 * tested.clients
    places = np.linspace(0, len(tested.dataset.labels) - 1, few).astype(np.int64)
    dataset = dataclasses.replace(
        tested.dataset,
        images=tested.dataset.images[places],
        labels=tested.dataset.labels[places],
        columns={name: values[places] for name, values in tested.dataset.columns.items()},
        n_train=int((places < tested.dataset.n_train).sum()),
    )
    try:
        partition = make_partition(tested.spec, dataset, tested.clients)
    except InvalidInput:
        return
    _check_samples(partition)
