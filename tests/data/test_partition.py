"""Specifications, index lists and their files; what rules have in common."""

from __future__ import annotations

import numpy as np
import pytest

from pfl.core.errors import InvalidInput
from pfl.data.dataset import load
from pfl.data.partition import Partition, check_partition, make_division, make_partition, of_seed, parse_spec
from tests.refusal import refusal


@pytest.fixture(scope="module")
def digits():
    return load("digits", progress=False)


# ---- specifications ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "canonical"),
    [
        ("dirichlet:0.1", "dirichlet:0.1,min=10,test=0.25,seed=0"),
        ("dirichlet", "dirichlet:0.1,min=10,test=0.25,seed=0"),
        ("dirichlet:1,seed=3,min=20,uncapped", "dirichlet:1,uncapped,min=20,test=0.25,seed=3"),
        ("pathological:5,test=0.50", "pathological:5,min=10,test=0.5,seed=0"),
        ("dirichlet:0.1,unstratified", "dirichlet:0.1,min=10,test=0.25,unstratified,seed=0"),
        ("classes_iid:6,seed=run,test=0.2", "classes_iid:6,min=10,test=0.2,seed=run"),
    ],
)
def test_the_canonical_specification_writes_the_defaults_out(spec, canonical):
    assert parse_spec(spec)[0] == canonical
    assert parse_spec(canonical)[0] == canonical


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("dirichlett:0.1", "did you mean 'dirichlet'?"),
        ("dirichlet:0.1,sed=1", "did you mean 'seed'?"),
        ("dirichlet:much", "alpha: much is not accepted; expected a number in [0.001, 1000000]"),
        ("dirichlet:-1", "alpha: -1.0 is not accepted"),
        ("dirichlet:0.1,alpha=0.3", "alpha: 0.3 is not accepted; expected one value, not 0.1 as well"),
        ("dirichlet:inf", "alpha: inf is not accepted"),
        ("dirichlet:nan", "alpha: nan is not accepted"),
        ("dirichlet:0,5", "partition: dirichlet:0,5 is not accepted; expected a point in numbers, as in 0.5"),
        ("dirichlet:0.1,test=0,25,seed=1", "partition: dirichlet:0.1,test=0,25,seed=1 is not accepted"),
        ("dirichlet:0.1,seed", "seed:"),
        ("dirichlet:0.1,seed=runs", "seed: runs is not accepted"),
        ("file:p.json,seed=run", "seed: run is not accepted; expected a number, because the lists of a file"),
        ("dirichlet:0.1,uncapped=yes", "uncapped: yes is not accepted; expected the flag alone"),
        (
            "dirichlet:0.1,unstratified,unstratified",
            "unstratified is not accepted; expected the flag only once",
        ),
        (
            "dirichlet:0.1,,",
            "partition: dirichlet:0.1,, is not accepted; expected an option after",
        ),
        ("dirichlet:0.1,unstratified=1", "unstratified: 1 is not accepted; expected the flag alone"),
        ("dirichlet_client:0.1,unstratified", "partition option: unstratified is not accepted"),
        ("dirichlet:0.1,test=1", "test: 1.0 is not accepted; expected a number in [0.01, 0.99]"),
        ("pathological:2.5", "classes: 2.5 is not accepted; expected a positive integer"),
        ("pathological:0", "classes: 0 is not accepted"),
        ("class_sets:0-4,size=1" + 400 * "0", "size: 1"),
    ],
)
def test_a_wrong_specification_is_one_line_that_names_what_is_wrong(spec, complaint):
    assert complaint in refusal(check_partition, spec, clients=10)


@pytest.mark.parametrize(
    ("spec", "clients", "complaint"),
    [
        ("dirichlet:0.1", 0, "clients: 0 is not accepted"),
        ("dirichlet:0.1", None, "clients: None is not accepted"),
        ("dirichlet:0.1", 200, "clients: 200 is not accepted; expected at most 179, or a smaller min"),
        ("pathological:11", 20, "classes: 11 is not accepted; expected at most 10"),
        ("pathological:2", 4, "classes: 2 is not accepted; expected at least 3, so that 4 clients"),
        ("dirichlet_client:0.1,size=1000000000", 20, "clients * (size + test_size): 20000002000 is not"),
        ("classes_client:2", 10**12, "at most 100,000,000 samples"),
    ],
)
def test_what_cannot_be_dealt_is_refused_before_the_data_are_read(spec, clients, complaint):
    assert complaint in refusal(check_partition, spec, clients, samples=1797, classes=10)


def test_a_rule_that_ends_below_the_minimum_says_how_small_its_smallest_client_is(labelled):
    uneven = labelled([0] * 5 + [1] * 95)
    with pytest.raises(InvalidInput, match="min: 10 is not accepted; expected at most 2, the small"):
        make_partition("pathological:1", uneven, 4)


# ---- index lists ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.25, 0.5])
def test_the_split_inside_a_client_keeps_the_proportions_of_its_classes(digits, share):
    partition = make_partition(f"dirichlet:0.5,test={share}", digits, 20)
    counts = partition.class_counts(digits.labels, 10)
    total = counts["train"] + counts["test"]
    assert np.all(np.abs(counts["test"] - share * total) < 1)
    np.testing.assert_array_equal(partition.sizes, np.floor(total.sum(1) * (1 - share)))


def test_an_unstratified_split_has_the_same_clients_and_sizes_but_not_their_classes(digits):
    usual = make_partition("dirichlet:0.5", digits, 20)
    random = make_partition("dirichlet:0.5,unstratified", digits, 20)
    np.testing.assert_array_equal(usual.sizes, random.sizes)
    counts = []
    for partition in (usual, random):
        of_client = partition.class_counts(digits.labels, 10)
        counts.append((of_client["train"] + of_client["test"], of_client["test"]))
    np.testing.assert_array_equal(counts[0][0], counts[1][0])
    assert np.abs(counts[1][1] - counts[1][0] / 4).max() > 1 > np.abs(counts[0][1] - counts[0][0] / 4).max()


def test_an_unstratified_split_is_stored_in_random_order_and_decided_by_the_partitions_seed(digits):
    random = "dirichlet:0.5,unstratified,seed="
    first, again, other = (make_partition(f"{random}{seed}", digits, 20) for seed in (0, 0, 1))
    assert first.checksum == again.checksum != other.checksum
    assert all((np.diff(indices) < 0).any() for indices in first.train)


def test_validation_takes_its_share_of_the_training_samples_and_no_test_sample(digits):
    partition = make_partition("dirichlet:0.1", digits, 20)
    search = partition.with_validation(0.2, digits.labels)
    for client in range(20):
        both = np.concatenate((search.train[client], search.test[client]))
        np.testing.assert_array_equal(np.sort(both), partition.train[client])
        assert len(search.test[client]) == max(1, np.ceil(0.2 * len(partition.train[client])))


def test_no_image_of_a_validation_set_is_among_the_clients_training_samples(digits):
    repeating = make_partition("dirichlet_client:0.1,size=300", digits, 10)
    assert any(len(np.unique(own)) < 300 for own in repeating.train)
    search = repeating.with_validation(0.2, digits.labels)
    assert all(not np.intersect1d(*lists).size for lists in zip(search.train, search.test, strict=True))
    assert [len(validation) for validation in search.test] == 10 * [60]


@pytest.mark.parametrize("share", [0, 1, -0.5])
def test_a_validation_share_outside_its_range_is_refused(digits, share):
    with pytest.raises(InvalidInput, match="validation"):
        make_partition("dirichlet:0.1", digits, 20).with_validation(share, digits.labels)


@pytest.mark.parametrize("own", [[0], [0, 0]])
def test_a_client_with_one_training_sample_has_none_for_validation(labelled, own):
    data = labelled([0, 1] * 20)
    train, test = (np.array(own), np.arange(1, 9)), (np.array([9]), np.array([10]))
    partition = Partition("dirichlet:1", train, test, "")
    with pytest.raises(InvalidInput, match="client 0 has only 1"):
        partition.with_validation(0.2, data.labels)


# ---- a partition for each seed -------------------------------------------------------------------------

RUN = "dirichlet:0.5,seed=run"


def test_a_partition_that_follows_the_runs_seed_is_that_of_this_seed(digits):
    division = make_division(RUN, digits, 20, (0, 3))
    assert list(division) == [0, 3]
    for seed, partition in division.items():
        expected = make_partition(f"dirichlet:0.5,seed={seed}", digits, 20)
        assert (partition.spec, partition.checksum) == (expected.spec, expected.checksum)
        searches = [full.with_validation(0.2, digits.labels).checksum for full in (partition, expected)]
        assert searches[0] == searches[1]


def test_any_other_partition_is_one_for_all_seeds(digits):
    partition = make_division("dirichlet:0.5,seed=2", digits, 20, (0, 3))
    assert of_seed(partition, 0) is of_seed(partition, 3) is partition


def test_a_partition_of_no_run_cannot_follow_its_seed(digits):
    with pytest.raises(InvalidInput, match="seed: run is not accepted; expected a number, because there"):
        make_partition(RUN, digits, 20)


# ---- files ---------------------------------------------------------------------------------------------


def test_a_saved_partition_comes_back_whole(digits, tmp_path):
    partition = make_partition("dirichlet:0.1,seed=2", digits, 20)
    partition.save(tmp_path / "deep" / "p.npz")
    loaded = Partition.load(tmp_path / "deep" / "p.npz")
    assert (loaded.spec, loaded.notes) == (partition.spec, partition.notes)
    assert (loaded.checksum, loaded.data_checksum) == (partition.checksum, digits.checksum)
    for mine, theirs in zip(loaded.train + loaded.test, partition.train + partition.test, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_equal_partitions_are_equal_bytes_on_disk(digits, tmp_path):
    for name in ("a.npz", "b.npz"):
        make_partition("dirichlet:0.1", digits, 20).save(tmp_path / name)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_saved_partition_is_as_readable_as_other_files(digits, tmp_path):
    (tmp_path / "usual").touch()
    make_partition("dirichlet:0.1", digits, 20).save(tmp_path / "p.npz")
    assert (tmp_path / "p.npz").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_a_partition_that_cannot_be_written_is_one_line_and_leaves_nothing(digits, tmp_path, fill_disk):
    fill_disk(tmp_path / "p.npz")
    with pytest.raises(InvalidInput, match=r"p\.npz is not accepted; expected a file that can be written"):
        make_partition("dirichlet:0.1", digits, 20).save(tmp_path / "p.npz")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("content", [None, b"", b"no archive", b"PK\x03\x04 half an archive"])
def test_a_partition_that_is_missing_or_damaged_is_one_line(tmp_path, content):
    if content is not None:
        (tmp_path / "p.npz").write_bytes(content)
    assert "p.npz" in refusal(Partition.load, tmp_path / "p.npz")


def test_index_lists_that_were_edited_are_noticed(digits, tmp_path):
    make_partition("dirichlet:0.1", digits, 20).save(tmp_path / "p.npz")
    with np.load(tmp_path / "p.npz") as stored:
        arrays = dict(stored)
    arrays["train"][0] += 1
    np.savez(tmp_path / "p.npz", **arrays)
    with pytest.raises(InvalidInput, match="checksum"):
        Partition.load(tmp_path / "p.npz")


# ---- statistics ----------------------------------------------------------------------------------------


def test_statistics_of_a_partition_that_fits_on_a_hand(labelled):
    data = labelled([0, 0, 0, 1, 1, 1, 1, 2])
    partition = Partition(
        "dirichlet:1",
        train=(np.array([0, 1]), np.array([3, 4, 5])),
        test=(np.array([3]), np.array([6, 7])),
        data_checksum="",
    )
    statistics = partition.statistics(data.labels, 3)
    assert statistics == {
        "clients": 2,
        "samples": 8,
        "train": 5,
        "test": 3,
        "size": {"mean": 4.0, "min": 3, "max": 5, "std": 1.0},
        "classes": {"mean": 2.0, "min": 2, "max": 2},
        "label_cosine": pytest.approx(4 / np.sqrt(5 * 17)),  # (2, 1, 0) and (0, 4, 1)
        "test_samples_of_untrained_classes": 2,
    }
