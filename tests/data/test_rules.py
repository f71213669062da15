"""The partition rules: what each promises, and the figures of the papers that they stand for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest

from pfl.core.errors import InvalidInput
from pfl.core.hyper import hyper
from pfl.core.rng import generator
from pfl.data.partition import Partition, make_partition
from pfl.data.partitions import PARTITIONS
from pfl.data.partitions.dirichlet import top_up
from pfl.data.partitions.dirichlet_client import DirichletClient
from pfl.data.partitions.pathological import deal
from pfl.data.rule import PoolingRule, Rule
from pfl.testing import check_partition
from pfl.testing.partition_kit import KIT, pooled_images


@pytest.fixture
def data():
    """3,000 training and 1,000 test images of ten classes, by 100 writers, in four domains."""
    return pooled_images()


def classes_of(partition: Partition, data) -> list[set[int]]:
    pairs = zip(partition.train, partition.test, strict=True)
    return [set(data.labels[np.concatenate(pair)].tolist()) for pair in pairs]


def sizes(partition: Partition) -> np.ndarray:
    return np.array([len(a) + len(b) for a, b in zip(partition.train, partition.test, strict=True)])


# ---- what all rules promise ----------------------------------------------------------------------------


@pytest.mark.parametrize("rule", KIT.rules)
@pytest.mark.parametrize("partition", [*sorted({*PARTITIONS} - {"by", "file"}), "by:writer"])
def test_a_partition_rule_meets_a_rule_of_the_kit(partition, rule):
    check_partition(partition, rules=[rule])


@pytest.mark.parametrize(
    ("spec", "images"),
    [
        *((spec, 4000) for spec in ("dirichlet:0.1", "dirichlet:0.1,uncapped", "blocks:2", "shards:2")),
        ("pathological:2", 4000),
        ("dirichlet_train:0.5", 3000),
    ],
)
@pytest.mark.parametrize("clients", [10, 37])
def test_no_sample_is_used_twice_and_none_is_left_over(spec, images, clients, data):
    partition = make_partition(spec, data, clients)
    used = np.concatenate(partition.train + partition.test)
    np.testing.assert_array_equal(np.sort(used), np.arange(images))


@pytest.mark.parametrize(
    ("base", "returned", "complaint"),
    [
        (PoolingRule, None, "assign: a return value of type NoneType is not accepted; expected a list of an"),
        (PoolingRule, [np.arange(40)], "assign: a list of 1 is not accepted; expected a list of an array"),
        (PoolingRule, [np.arange(40.0)] * 2, "assign: client 0: float64 (40,) is not accepted"),
        (PoolingRule, [np.arange(40), list(range(40))], "assign: client 1: list is not accepted"),
        (PoolingRule, [np.arange(40), np.arange(40) - 1], "assign: client 1: index -1 is not accepted"),
        (PoolingRule, [np.arange(40), np.array([4000])], "assign: client 1: index 4000 is not accepted"),
        (PoolingRule, [np.arange(4000) % 2 == 0] * 2, "assign: client 0: bool (4000,) is not accepted"),
        (Rule, [np.arange(40)] * 2, "divide: a return value of type list is not accepted; expected"),
        (Rule, ([np.arange(40)] * 2, [np.arange(40)]), "divide: a list of 1 is not accepted; expected"),
        (Rule, ([np.arange(40)] * 2, [np.arange(39, 80)] * 2), "divide: client 0: index 39 in both is not"),
        (Rule, ([np.arange(40)] * 3,) * 2, "divide: a list of 3 is not accepted; .* each of 2 clients"),
    ],
)
def test_what_a_rule_returns_is_checked(base, returned, complaint, data, monkeypatch):
    hook = complaint.partition(":")[0]
    wrong = dataclass(frozen=True)(type("Wrong", (base,), {hook: lambda *_: returned}))
    monkeypatch.setitem(PARTITIONS._added, "wrong", wrong)
    line = re.escape(complaint).replace(r"\.\*", ".*").replace(r"\ ", " ")
    with pytest.raises(InvalidInput, match=rf"^Wrong\.{line}"):
        make_partition("wrong", data, 2)


def test_an_option_outside_of_a_dataclass_is_refused(data, monkeypatch):
    class Wrong(Rule):
        share: float = hyper(0.5, "of something")

        def divide(self, dataset, clients, notes):
            return [np.arange(40)] * clients, [np.arange(40, 80)] * clients

    monkeypatch.setitem(PARTITIONS._added, "wrong", Wrong)
    with pytest.raises(InvalidInput, match=r"^Wrong\.share: a field of a class that is not a dataclass"):
        make_partition("wrong", data, 2)


# ---- B: dirichlet --------------------------------------------------------------------------------------


def test_too_few_training_images_for_the_minimum_of_every_client_are_one_line(labelled):
    data = labelled(np.tile(np.arange(10), 20), n_train=100)
    with pytest.raises(InvalidInput, match=r"^clients: 15 .*at most 10, .* at least min=10 of 100 images"):
        make_partition("dirichlet_train:0.5", data, 15)


# (classes, class size, alpha): standard deviation of 100 clients' sizes with the cap, its deviation over
# partitions, and the standard deviation without the cap (methods-partitions.md, section 3.1)
SPREADS = {
    "CIFAR-10, 0.1": (10, 6_000, 0.1, 471, 40, 576),
    "CIFAR-10, 0.5": (10, 6_000, 0.5, 197, 16, 250),
    "CINIC-10, 0.1": (10, 27_000, 0.1, 2123, 190, 2599),
    "CINIC-10, 0.5": (10, 27_000, 0.5, 861, 57, 1182),
    "Tiny-ImageNet, 0.1": (200, 550, 0.1, 106, 13, 238),
    "Tiny-ImageNet, 0.5": (200, 550, 0.5, 42, 5, 105),
}


@pytest.mark.parametrize("case", SPREADS)
def test_the_cap_gives_the_spread_of_sizes_that_pfedsim_prints(case, labelled):
    classes, size, alpha, capped, deviation, uncapped = SPREADS[case]
    data = labelled(np.repeat(np.arange(classes), size))

    def spread(flag: str) -> float:
        partitions = (make_partition(f"dirichlet:{alpha}{flag},seed={seed}", data, 100) for seed in range(5))
        return float(np.mean([sizes(partition).std() for partition in partitions]))

    assert spread("") == pytest.approx(capped, abs=deviation)
    assert spread(",uncapped") == pytest.approx(uncapped, rel=0.1)


def test_a_client_above_the_average_size_gets_nothing_of_the_next_class(data):
    partition = make_partition("dirichlet:0.5", data, 10)
    counts = partition.class_counts(data.labels, 10)
    held = np.cumsum(counts["train"] + counts["test"], axis=1)
    full = held[:, :-1] >= 400
    assert full.any()
    assert np.all(np.diff(held, axis=1)[full] == 0)


def test_draws_that_leave_a_client_short_are_repeated_and_the_repeats_noted(data):
    partition = make_partition("dirichlet:0.1,min=60", data, 20)
    assert sizes(partition).min() >= 60
    assert partition.notes != ("redraws: 0",)


def test_after_the_limit_samples_are_moved_and_the_move_is_noted(data):
    partition = make_partition("dirichlet:0.01,min=40", data, 50)
    redraws, moved = partition.notes
    assert redraws == "redraws: 1000"
    assert moved.startswith("samples moved to clients with fewer than 40: ")
    assert sizes(partition).min() == 40
    np.testing.assert_array_equal(np.sort(np.concatenate(partition.train + partition.test)), np.arange(4000))


def test_moved_samples_are_of_a_class_that_the_needy_client_holds_and_from_its_largest_holder():
    counts = np.array([[1, 30, 20], [0, 50, 0]])
    assert top_up(counts, 5) == 4
    np.testing.assert_array_equal(counts, [[5, 26, 20], [0, 50, 0]])


def test_a_client_with_nothing_gets_of_any_class():
    counts = np.array([[0, 30], [0, 0]])
    assert top_up(counts, 3) == 3
    np.testing.assert_array_equal(counts, [[3, 27], [0, 0]])


# ---- D: pathological -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("clients", "each", "classes"), [(20, 2, 10), (7, 3, 10), (5, 10, 10), (100, 20, 100)]
)
def test_classes_are_dealt_distinct_and_evenly(clients, each, classes):
    holds = deal(clients, each, classes, generator(0, "test"))
    assert np.all(holds.sum(1) == each)
    holders = holds.sum(0)
    assert holders.min() == clients * each // classes
    assert holders.max() == -(-clients * each // classes)


def test_the_cosines_of_pathological_clients_take_few_values(labelled):
    data = labelled(np.repeat(np.arange(10), 600))
    counts = make_partition("pathological:2,test=0.5", data, 50).class_counts(data.labels, 10)
    unit = counts["train"] / np.linalg.norm(counts["train"], axis=1, keepdims=True)
    np.testing.assert_array_equal(np.unique((unit @ unit.T).round(6)), [0, 0.5, 1])


# ---- C: blocks -----------------------------------------------------------------------------------------


# (methods-partitions.md, section 5)
@pytest.mark.parametrize(
    ("classes", "each"),
    [*product([10], [2, 3, 4]), *product([100], [10, 15, 20]), *product([200], [20, 30, 40])],
)
def test_blocks_are_the_groups_of_pfedcs(classes, each, labelled):
    data = labelled(np.repeat(np.arange(classes), 60_000 // classes))
    sets = [tuple(sorted(held)) for held in classes_of(make_partition(f"blocks:{each}", data, 20), data)]
    groups = [(sets.count(held), len(held)) for held in dict.fromkeys(sets)]
    # Blocks of ``each`` classes and, in proportion, of the 20 clients; the last has what is left of both.
    whole, rest = divmod(classes, each)
    members = 20 * each // classes
    assert groups == [(members, each)] * whole + [(20 - members * whole, rest)] * bool(rest)


def test_the_last_client_of_a_block_is_the_largest_and_no_other_has_an_average_share(labelled):
    data = labelled(np.repeat(np.arange(10), 6000))
    for block in sizes(make_partition("blocks:2", data, 20)).reshape(5, 4):
        assert np.all(block[:3] < 3000)
        assert np.all(block[:3] >= 300)
        assert block[3] > 3000


def test_blocks_are_drawn_again_until_every_client_has_its_minimum(labelled):
    data = labelled(np.repeat(np.arange(10), 200))
    divided = make_partition("blocks:2,min=40,seed=3", data, 20)
    assert divided.notes == ("redraws: 11",)
    assert sizes(divided).min() >= 40
    assert sizes(divided).sum() == 2000


def test_blocks_of_too_few_samples_are_refused(labelled):
    with pytest.raises(InvalidInput, match="min"):
        make_partition("blocks:1,min=100", labelled([0] * 40 + [1] * 1960), 20)


# ---- D': shards ----------------------------------------------------------------------------------------


def test_a_client_with_two_shards_has_at_most_two_classes_where_shards_fit_into_classes(data):
    partition = make_partition("shards:2", data, 20)
    assert all(1 <= len(held) <= 2 for held in classes_of(partition, data))
    assert set(sizes(partition)) == {200}


# ---- E: classes_iid, classes_noniid --------------------------------------------------------------------


# sizes per client of the official training sets: classes of a client, class size, training, test samples
# (methods-partitions.md, section 4)
PARTS = {
    "EMNIST": (47, 32, 2400, 6144, 1536),
    "CIFAR-10": (10, 6, 5000, 2400, 600),
    "CIFAR-100": (100, 60, 500, 2400, 600),
}
MNIST = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
"""The sizes of the classes of its training set."""


@pytest.mark.parametrize("rule", ["classes_iid", "classes_noniid"])
@pytest.mark.parametrize("case", PARTS)
def test_clients_have_the_sizes_that_spfl_prints(rule, case, labelled):
    classes, each, size, train, test = PARTS[case]
    data = labelled(np.repeat(np.arange(classes), size))
    partition = make_partition(f"{rule}:{each},test=0.2", data, 10)
    assert [len(indices) for indices in partition.train] == [train] * 10
    assert [len(indices) for indices in partition.test] == [test] * 10
    assert all(len(held) == each for held in classes_of(partition, data))


def test_on_mnist_sizes_are_close_to_the_printed_2800_and_700(labelled):
    data = labelled(np.repeat(np.arange(10), MNIST))
    partition = make_partition("classes_noniid:6,test=0.2", data, 10)
    assert partition.sizes.mean() == pytest.approx(2880, rel=0.03)
    assert np.mean([len(indices) for indices in partition.test]) == pytest.approx(720, rel=0.03)


def test_clients_of_the_iid_rule_share_their_classes_and_those_of_the_other_do_not(data):
    def sets(rule: str) -> set[frozenset[int]]:
        return {frozenset(held) for held in classes_of(make_partition(f"{rule}:6", data, 10), data)}

    assert len(sets("classes_iid")) == 1 < len(sets("classes_noniid"))


def test_only_training_images_are_used_each_once_and_the_rest_is_noted(data):
    partition = make_partition("classes_noniid:6", data, 10)
    used = np.concatenate(partition.train + partition.test)
    assert used.max() < 3000
    assert len(np.unique(used)) == len(used) == 1800
    assert partition.notes[0] == "training samples without a client: 1200"


RELEASED = [
    *([1, 4, 5, 7, 8, 9], [0, 1, 3, 4, 5, 8], [2, 4, 5, 6, 7, 8], [0, 2, 3, 4, 5, 7], [0, 1, 2, 6, 7, 8]),
    *([1, 2, 5, 6, 8, 9], [2, 4, 6, 7, 8, 9], [0, 1, 2, 3, 6, 9], [1, 2, 4, 5, 6, 9], [0, 1, 4, 6, 7, 9]),
]
"""Classes of CIFAR-10's non-IID clients by SPFL's scripts; the first client's are all IID clients'."""


@pytest.fixture
def shuffled_cifar10(labelled):
    """Labels of CIFAR-10's training set in another order; the classes drawn depend on their counts alone."""
    return labelled(np.random.default_rng(1).permutation(np.repeat(np.arange(10), 5000)))


def released(rule: str, data, seed: int = 777) -> Partition:
    return make_partition(f"{rule}:6,released,test=0.2,seed={seed}", data, 10)


def test_the_released_partition_has_the_classes_and_sizes_of_spfls_scripts(shuffled_cifar10):
    for rule, classes in (("classes_iid", RELEASED[:1] * 10), ("classes_noniid", RELEASED)):
        partition = released(rule, shuffled_cifar10)
        assert [sorted(held) for held in classes_of(partition, shuffled_cifar10)] == classes
        counts = partition.class_counts(shuffled_cifar10.labels, 10)
        assert set(counts["train"][counts["train"] > 0]) == {400}
        assert set(counts["test"][counts["test"] > 0]) == {100}
        used = np.concatenate(partition.train + partition.test)
        assert len(np.unique(used)) == len(used) == 30_000


def test_the_released_partition_is_that_of_numpys_global_generator_image_by_image(shuffled_cifar10):
    labels = shuffled_cifar10.labels
    partition = released("classes_noniid", shuffled_cifar10)
    np.random.seed(777)  # noqa: NPY002 - as the released scripts
    orders = [np.where(labels == c)[0][np.random.choice(5000, 5000, replace=False)] for c in range(10)]  # noqa: NPY002
    drawn = [np.random.choice(10, 6, replace=False) for _ in range(10)]  # noqa: NPY002
    given = dict.fromkeys(range(10), 0)
    for client, classes in enumerate(drawn):
        parts = []
        for c in classes:
            parts.append(orders[c][given[c] : given[c] + 500])
            given[c] += 500
        expected_train = np.concatenate([part[: int(500 * 0.8)] for part in parts])
        expected_test = np.concatenate([part[int(500 * 0.8) :] for part in parts])
        np.testing.assert_array_equal(partition.train[client], expected_train)
        np.testing.assert_array_equal(partition.test[client], expected_test)


def test_the_first_client_of_both_released_columns_has_the_same_images(shuffled_cifar10):
    iid, noniid = (released(rule, shuffled_cifar10) for rule in ("classes_iid", "classes_noniid"))
    np.testing.assert_array_equal(iid.train[0], noniid.train[0])
    np.testing.assert_array_equal(iid.test[0], noniid.test[0])


def test_test_sets_of_released_curves_on_mnist_are_those_of_seed_0(labelled):
    """The sizes are the denominators of the accuracies in PLGA's released files of MNIST."""
    partition = released("classes_noniid", labelled(np.repeat(np.arange(10), MNIST)), seed=0)
    sizes_of_test_sets = [len(indices) for indices in partition.test]
    assert sizes_of_test_sets == [730, 706, 737, 714, 713, 716, 714, 737, 730, 715]


def test_the_released_partition_leaves_numpys_global_generator_alone(shuffled_cifar10):
    np.random.seed(3)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    released("classes_iid", shuffled_cifar10)
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("released,unstratified", "unstratified: True .*absent, because `released`"),
        ("released=1", "released: 1 .*the flag alone"),
    ],
)
def test_what_the_released_code_cannot_do_is_refused_in_one_line(options, message, data):
    with pytest.raises(InvalidInput, match=f"^{message}"):
        make_partition(f"classes_iid:6,{options}", data, 10)


# ---- A: dirichlet_client, classes_client ---------------------------------------------------------------


# mean number of classes among 500 samples of a client, by alpha and classes: by the largest remainder, and by
# Fling's rounding (methods-partitions.md, section 6)
PRESENT = {
    0.01: {10: (1.59, 1.61), 100: (6.77, 7.03), 200: (11.7, 12.0)},
    0.1: {10: (5.11, 5.20), 100: (34.8, 34.6), 200: (60.1, 59.1)},
    0.5: {10: (9.27, 9.28), 100: (75.9, 75.4), 200: (133.5, 131.5)},
    1: {10: (9.91, 9.91), 100: (90.7, 90.5), 200: (165.0, 163.9)},
}


@pytest.mark.parametrize("alpha", PRESENT)
@pytest.mark.parametrize("classes", [10, 100, 200])
def test_clients_have_as_many_classes_as_fedcac_implies(alpha, classes):
    rng = generator(0, "test")
    for fling, expected in zip((False, True), PRESENT[alpha][classes], strict=True):
        rule = DirichletClient(alpha=alpha, fling_rounding=fling)
        drawn = (rule.counts(row, 500, rng) for row in rule.proportions(5_000, classes, rng))
        assert np.mean([np.count_nonzero(counts) for counts in drawn]) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(
    "spec", ["dirichlet_client:0.1", "dirichlet_client:0.1,fling_rounding", "classes_client:2"]
)
def test_clients_have_exactly_their_sizes_from_the_official_splits(spec, data):
    partition = make_partition(f"{spec},size=50,test_size=20", data, 30)
    assert {len(indices) for indices in partition.train} == {50}
    assert {len(indices) for indices in partition.test} == {20}
    assert max(indices.max() for indices in partition.train) < 3000
    assert min(indices.min() for indices in partition.test) >= 3000


def test_a_class_that_the_test_set_lacks_gets_no_test_samples(labelled):
    data = labelled([*np.tile(np.arange(4), 10), *np.tile(np.arange(3), 10)], n_train=40)
    partition = make_partition("dirichlet_client:1,size=20,test_size=10,fling_rounding", data, 5)
    assert {len(indices) for indices in partition.test} == {10}


def test_training_and_test_have_the_same_proportions(data):
    partition = make_partition("dirichlet_client:0.5,size=200,test_size=100", data, 20)
    counts = partition.class_counts(data.labels, 10)
    assert np.all(np.abs(counts["train"] / 2 - counts["test"]) <= 1)


def test_a_client_of_two_classes_has_half_of_its_samples_in_each(data):
    counts = make_partition("classes_client:2,size=50,test_size=20", data, 30).class_counts(data.labels, 10)
    assert {tuple(row[row > 0]) for row in counts["train"]} == {(25, 25)}
    assert {tuple(row[row > 0]) for row in counts["test"]} == {(10, 10)}
    np.testing.assert_array_equal(counts["train"] > 0, counts["test"] > 0)


def test_images_repeat_within_a_client_only_where_a_class_is_too_small_and_the_repeats_are_noted(labelled):
    data = labelled([0] * 100 + [1] * 100 + [0] * 30 + [1] * 30, n_train=200)
    partition = make_partition("classes_client:1,size=80,test_size=50", data, 4)
    assert all(len(np.unique(indices)) == 80 for indices in partition.train)
    assert partition.notes[0].startswith("training samples repeated within a client: 0;")
    repeats = sum(50 - len(np.unique(indices)) for indices in partition.test)
    assert repeats >= 4 * 20
    assert partition.notes[1].startswith(f"test samples repeated within a client: {repeats};")


@pytest.mark.parametrize(
    ("part", "labels"), [("training", [1] * 20 + [0, 1] * 10), ("test", [0, 1] * 10 + [1] * 20)]
)
def test_a_part_without_a_client_s_only_class_is_named(part, labels, labelled):
    data = labelled(labels, n_train=20)
    with pytest.raises(InvalidInput, match=f"expected a {part} set with images of every class"):
        make_partition("classes_client:1,size=5,test_size=5", data, 9)


@pytest.mark.parametrize(
    ("rule", "needs"), [("dirichlet_client:0.1", "test set"), ("by:writer", "columns"), ("domain", "domains")]
)
def test_a_data_set_without_what_a_rule_reads_is_refused(rule, needs, labelled):
    with pytest.raises(InvalidInput, match=needs):
        make_partition(rule, labelled([0, 1] * 500), 4)


# ---- G: domain -----------------------------------------------------------------------------------------


def test_every_client_has_one_domain_and_every_domain_equally_many_clients(data):
    partition = make_partition("domain", data, None)
    assert partition.clients == 4 * 20
    pairs = zip(partition.train, partition.test, strict=True)
    domains = [set(data.columns["domain"][np.concatenate(pair)]) for pair in pairs]
    assert domains == [{name} for name in "abcd" for _ in range(20)]
    assert sizes(partition).sum() == 4000


def test_clients_that_do_not_divide_over_the_domains_are_refused(data):
    with pytest.raises(InvalidInput, match="clients: 10 is not accepted; expected a multiple of 4"):
        make_partition("domain", data, 10)
