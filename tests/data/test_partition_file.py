"""The rule ``file``: index lists of the user's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pfl.data.partition import check_partition, make_partition
from pfl.errors import InvalidInput


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


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ({"a": {"train": [0, 10], "test": [1]}}, "index 10 (client a, train) is not accepted"),
        ({"a": {"train": [10**30], "test": [1]}}, "expected a number in [0, 9]"),
        ({"a": {"train": [0], "test": [-1]}}, "index -1 (client a, test)"),
        ({"a": {"train": [0], "test": [1, 0]}}, "an index used once; client a, train has it"),
        (
            {"a": {"train": [0], "test": [1]}, "b": {"train": [1], "test": [2]}},
            "index 1 (client b, train) is not accepted; expected an index used once; client a, test has it",
        ),
        ({"a": {"train": [0]}}, "client a"),
        ({"a": {"train": [0], "test": []}}, "client a"),
        ({"a": {"train": [0.5], "test": [1]}}, "client a"),
        ({"a": [0, 1]}, "client a"),
        ([], "lists.json"),
        ({}, "lists.json"),
        ('{"a": {"train": [0', "JSON"),
        ("[" * 100_000, "JSON"),
    ],
)
def test_a_wrong_file_is_one_line_that_names_the_client_or_the_index(tmp_path, data, content, complaint):
    with pytest.raises(InvalidInput) as error:
        make_partition(written(tmp_path, content), data, None)
    assert complaint in str(error.value)
    assert "\n" not in str(error.value)


def test_an_index_that_no_data_set_has_is_left_to_the_data_where_they_are_not_known_yet(tmp_path):
    check_partition(written(tmp_path, {"a": {"train": [10**30], "test": [1]}}), None)


def test_the_files_path_may_have_commas(tmp_path, data):
    (tmp_path / "a,b").mkdir()
    spec = written(tmp_path / "a,b", {"0": {"train": [3, 1], "test": [0]}}) + ",seed=3"
    assert make_partition(spec, data, None).spec == spec


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
