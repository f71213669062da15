"""The rule ``file``: index lists of the user's own."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pfl.core.errors import InvalidInput
from pfl.data.partition import check_partition, make_partition
from tests.refusal import refusal


@pytest.fixture
def data(labelled):
    return labelled([0, 1] * 5)


def written(folder: Path, content: object) -> str:
    path = folder / "lists.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return f"file:{path}"


def test_clients_get_the_samples_that_the_file_lists(tmp_path, data):
    spec = written(tmp_path, {"0": {"train": [3, 1], "test": [0]}, "1": {"train": [9], "test": [4, 2]}})
    partition = make_partition(spec, data, None)
    assert [indices.tolist() for indices in partition.train] == [[3, 1], [9]]
    assert [indices.tolist() for indices in partition.test] == [[0], [4, 2]]


def test_clients_with_numbers_for_names_come_in_numeric_order(tmp_path, data):
    lists = {
        name: {"train": [2 * int(name) - 4], "test": [2 * int(name) - 3]} for name in ("5", "3", "2", "4")
    }
    partition = make_partition(written(tmp_path, lists), data, 4)
    assert [int(indices[0]) for indices in partition.train] == [0, 2, 4, 6]


def test_other_names_keep_the_files_order_and_are_noted(tmp_path, data):
    lists = {"zoe": {"train": [0], "test": [1]}, "adam": {"train": [2], "test": [3]}}
    partition = make_partition(written(tmp_path, lists), data, None)
    assert [int(indices[0]) for indices in partition.train] == [0, 2]
    assert partition.notes == ("clients: zoe, adam",)


def test_an_index_that_no_data_set_has_is_left_to_the_data_where_they_are_not_known_yet(tmp_path):
    spec = written(tmp_path, {"a": {"train": [10**30], "test": [1]}})
    check_partition(spec, None)
    assert "index 10000" in refusal(check_partition, spec, None, samples=10)


def test_the_files_path_may_have_commas(tmp_path, data):
    (tmp_path / "a,b").mkdir()
    spec = written(tmp_path / "a,b", {"0": [3, 1]}) + ",seed=3"
    assert make_partition(spec, data, None).spec == spec


@pytest.mark.parametrize(
    "content", [{"0": {"train": [3, 1], "test": [0]}}, {"data_indices": [{"train": [3, 1], "test": [0]}]}]
)
def test_a_seed_that_only_a_held_out_split_would_follow_is_refused(tmp_path, data, content):
    spec = written(tmp_path, content)
    assert make_partition(f"{spec},seed=0", data, None).checksum == make_partition(spec, data, None).checksum
    said = refusal(check_partition, f"{spec},seed=1", None)
    assert said == f"seed: 1 is not accepted; expected 0, as {spec[5:]} lists training and test samples"


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InvalidInput, match=r"missing\.json"):
        check_partition(f"file:{tmp_path / 'missing.json'}", None)


def test_another_number_of_clients_than_the_file_lists_is_refused(tmp_path, data):
    spec = written(tmp_path, {"0": {"train": [0], "test": [1]}})
    with pytest.raises(InvalidInput, match="clients: 2 is not accepted; expected 1"):
        make_partition(spec, data, 2)


def test_a_tilde_in_the_path_is_the_home_folder(tmp_path, data, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    spec = written(tmp_path, {"0": {"train": [3], "test": [0]}})
    assert make_partition(spec.replace(str(tmp_path), "~"), data, 1).train[0].tolist() == [3]


# ---- files of other programs ----------------------------------------------------------------------------

FL_BENCH = {
    "separation": {"train": [0, 1], "test": [0, 1], "val": [], "total": 2},
    "data_indices": [
        {"train": [0, 2, 4], "val": [], "test": [6]},
        {"train": [1, 3, 5], "val": [], "test": [7]},
    ],
}
SIZES = "Size of samples for labels in clients"
NIID_BENCH = {"0": [0, 1, 2, 3], "1": [4, 5, 6, 7]}
PFLLIB = {
    "num_clients": 2,
    "num_classes": 2,
    "non_iid": True,
    "partition": "dir",
    SIZES: [[[0, 3], [1, 1]], [[1, 4]]],
}
LEAF = {
    "users": ["zoe", "adam"],
    "num_samples": [4, 3],
    "user_data": {"zoe": {"x": [[0.0]] * 4, "y": [0, 0, 1, 1]}, "adam": {"x": [[0.0]] * 3, "y": [1, 1, 1]}},
}


def labels_of(partition, data) -> list[list[int]]:
    both = zip(partition.train, partition.test, strict=True)
    return [sorted(data.labels[np.concatenate(own)].tolist()) for own in both]


def test_fl_benchs_partition_has_the_clients_lists(tmp_path, data):
    partition = make_partition(written(tmp_path, FL_BENCH), data, None)
    assert [indices.tolist() for indices in partition.train] == [[0, 2, 4], [1, 3, 5]]
    assert [indices.tolist() for indices in partition.test] == [[6], [7]]
    assert partition.notes == ()


def test_a_quarter_of_niid_benchs_lists_is_for_testing(tmp_path, data):
    partition = make_partition(written(tmp_path, NIID_BENCH), data, None)
    assert [sorted(np.concatenate(own)) for own in zip(partition.train, partition.test, strict=True)] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
    ]
    assert [len(indices) for indices in partition.test] == [1, 1]
    assert partition.notes == ("a list per client, as in NIID-Bench: 25% of its samples are for testing",)


def test_samples_are_drawn_where_pfllibs_file_counts_those_of_each_label(tmp_path, data):
    partition = make_partition(written(tmp_path, PFLLIB), data, None)
    assert labels_of(partition, data) == [[0, 0, 0, 1], [1, 1, 1, 1]]
    assert [len(indices) for indices in partition.test] == [1, 1]
    everything = np.concatenate([*partition.train, *partition.test])
    assert len(set(everything.tolist())) == 8
    assert partition.notes[0].startswith("PFLlib's file has labels and no indices")


def test_a_label_that_pfllibs_file_counts_as_zero_is_not_drawn(tmp_path, data):
    content = {SIZES: [[[0, 4], [1, 0]], [[0, 0], [1, 3]]]}
    assert labels_of(make_partition(written(tmp_path, content), data, None), data) == [[0] * 4, [1] * 3]
    content = {SIZES: [[[0, 3], [1, 0]], [[0, 2]]]}
    assert labels_of(make_partition(written(tmp_path, content), data, None), data) == [[0] * 3, [0] * 2]


def test_samples_are_drawn_where_leafs_file_has_those_of_each_user(tmp_path, data):
    partition = make_partition(written(tmp_path, LEAF), data, None)
    assert labels_of(partition, data) == [[0, 0, 1, 1], [1, 1, 1]]
    assert partition.notes[0] == "clients: zoe, adam"
    assert partition.notes[1].startswith("LEAF's file has labels and no indices")


@pytest.mark.parametrize("content", [NIID_BENCH, PFLLIB, LEAF])
def test_what_a_file_leaves_open_follows_the_seed(tmp_path, content):
    from pfl.data.dataset import load

    digits, spec = load("digits", progress=False), written(tmp_path, content)
    checksums = [make_partition(f"{spec},seed={seed}", digits, None).checksum for seed in (0, 0, 1)]
    assert checksums[0] == checksums[1] != checksums[2]


def changed(content: dict, **values: object) -> dict:
    return {key: value for key, value in {**content, **values}.items() if value is not None}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ({"a": {"train": [0, 10], "test": [1]}}, "index 10 (client a, train) is not accepted"),
        ({"a": {"train": [10**30], "test": [1]}}, "expected a number in [0, 9]"),
        ({"a": {"train": [0], "test": [-1]}}, "index -1 (client a, test)"),
        ({"a": {"train": [0], "test": [1, 0]}}, "an index that occurs once; it is also in client a, train"),
        (
            {"a": {"train": [0], "test": [1]}, "b": {"train": [1], "test": [2]}},
            "(client b, train) is not accepted; expected an index that occurs once; it is also in client a",
        ),
        ({"a": {"train": [0], "test": []}}, "client a"),
        ({"a": {"train": [0], "test": [1], "val": [2]}}, "client a, unknown key 'val'"),
        ({"a": {"train": [0]}}, "client a, missing key 'test'"),
        ({"a": {"train": [0.5], "test": [1]}}, "client a, train: 0.5 is not accepted; expected an integer"),
        ({"a": [0]}, "client a is not accepted; expected a list of at least 2 indices"),
        ({"a": 3}, "client a"),
        ({"a": [0, 1], "b": {"train": [2], "test": [3]}}, "client a"),
        (
            {"a": [0, 1], "b": [1, 2]},
            "index 1 (client b) is not accepted; expected an index that occurs once",
        ),
        ({"1": [0, 1], "01": [2, 3]}, "client 1 is not accepted; expected each client once"),
        ('{"a": {"train": [0], "test": [1]}, "a": {"train": [2], "test": [3]}}', "the key 'a' occurs twice"),
        ('{"a": {"train": [0], "test": [1], "train": [2]}}', "the key 'train' occurs twice"),
        ('{"\\ud800": {"train": [0], "test": [1]}}', "surrogates not allowed"),
        ({"9" * 5000: {"train": [0], "test": [1]}}, "expected names of at most 200 letters"),
        ({"users": [], "user_data": {}}, "users is not accepted; expected the names in user_data, at least"),
        (
            {"users": ["a"], "num_samples": [3], "user_data": {"a": {"y": [0, 1]}}},
            "num_samples is not accepted; expected the numbers of labels in user_data",
        ),
        ([], "lists.json"),
        ({}, "lists.json"),
        ('{"a": {"train": [0', "JSON"),
        ("[" * 100_000, "JSON"),
        (changed(FL_BENCH, data_indices=None), "a key 'data_indices' as well"),
        (changed(FL_BENCH, data_indices=[{"train": [0], "test": []}]), "data_indices of client 0, test"),
        (changed(FL_BENCH, data_indices=[{"train": [0], "val": [2], "test": [1]}]), "unknown key 'val'"),
        (changed(FL_BENCH, data_indices=[]), "at least one client"),
        (changed(FL_BENCH, data_indices=[[0, 1]]), "data_indices"),
        (changed(FL_BENCH, data_indices={"0": [0, 1]}), "a JSON array"),
        (changed(PFLLIB, **{SIZES: None}), f"a key '{SIZES}' as well"),
        (changed(PFLLIB, num_clients=3), "num_clients 3"),
        ({"num_clients": 0, SIZES: []}, "at least one client"),
        (changed(PFLLIB, **{SIZES: [[[0, 6]], [[1, 2]]]}), "label 0"),
        (changed(PFLLIB, **{SIZES: [[[7, 2]], [[1, 2]]]}), "label 7"),
        (changed(PFLLIB, **{SIZES: [[[0, 1]], [[1, 2]]]}), "two samples"),
        (changed(PFLLIB, **{SIZES: [[[0, 1, 2]], []]}), "client 0"),
        (changed(LEAF, users=["zoe", "zoe"]), "users"),
        (changed(LEAF, users=None), "a key 'users' as well"),
        (changed(LEAF, user_data=None), "a key 'user_data' as well"),
        (changed(LEAF, users=["zoe"], user_data={"zoe": {"x": []}}), "user zoe"),
    ],
)
def test_a_wrong_file_is_one_line_that_names_what_is_wrong(tmp_path, data, content, complaint):
    assert complaint in refusal(make_partition, written(tmp_path, content), data, None)
