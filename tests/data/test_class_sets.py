"""Clients whose classes are named."""

from __future__ import annotations

import numpy as np
import pytest

from pfl.core.errors import InvalidInput
from pfl.data.partition import check_partition, make_partition


@pytest.fixture
def data(labelled):
    """60 images of each of ten classes."""
    return labelled(np.tile(np.arange(10), 60), n_train=500)


def counts(partition, data) -> np.ndarray:
    both = partition.class_counts(data.labels, 10)
    return both["train"] + both["test"]


def test_a_class_is_cut_equally_among_the_clients_that_have_it(data):
    partition = make_partition("class_sets:0-1/0-1/1-2,test=0.5", data, None)
    assert counts(partition, data)[:, :3].tolist() == [[30, 20, 0], [30, 20, 0], [0, 20, 60]]
    everything = np.concatenate([*partition.train, *partition.test])
    assert len(np.unique(everything)) == len(everything)


def test_weights_are_the_proportions_of_a_clients_classes(data):
    partition = make_partition("class_sets:0x4+9x4+3+5", data, 1)
    assert counts(partition, data).tolist() == [[60, 0, 0, 15, 0, 15, 0, 0, 0, 60]]


def test_a_size_cuts_all_classes_alike(data):
    partition = make_partition("class_sets:0x4+9x4+3+5,size=50", data, 1)
    assert counts(partition, data).tolist() == [[20, 0, 0, 5, 0, 5, 0, 0, 0, 20]]


def test_a_class_without_a_sample_for_the_client_is_left_out(labelled):
    data = labelled([0] * 8 + [1] * 8 + [2])
    partition = make_partition("class_sets:0+2/1+2,min=2,test=0.5", data, None)
    assert counts(partition, data)[:, :2].tolist() == [[8, 0], [0, 8]]


@pytest.mark.parametrize("sets", ["", "0-", "4-2", "0x0", "cats", "0-9999999999999", "0x9999999999999"])
def test_sets_that_mean_nothing_are_named(sets):
    with pytest.raises(InvalidInput, match="sets"):
        check_partition(f"class_sets:{sets}", None)


def test_classes_have_to_be_there():
    with pytest.raises(InvalidInput, match="classes of at most 9"):
        check_partition("class_sets:0-4/5-10", None, 600, 10)


def test_more_clients_than_sets_have_them_in_turn(data):
    partition = make_partition("class_sets:0-1/2", data, 4)
    assert counts(partition, data)[:, :3].tolist() == [[30, 30, 0], [0, 0, 30]] * 2
