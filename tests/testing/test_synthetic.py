"""Synthetic federations are the same everywhere, and of the asked sizes."""

from __future__ import annotations

import numpy as np

from pfl.testing import synthetic
from pfl.testing.synthetic import make_clients, make_dataset


def test_images_mapped_from_a_file_are_those_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(synthetic, "BLOCK", 7)
    mapped = make_dataset(file=tmp_path / "images.bin")
    monkeypatch.undo()
    assert isinstance(mapped.images, np.memmap)
    assert mapped.checksum == make_dataset().checksum


def test_blank_images_take_no_memory():
    dataset = make_dataset((3, 64, 64), samples=1_000_000, blank=True)
    assert dataset.images.shape == (1_000_000, 3, 64, 64)
    assert dataset.images.strides == (0, 0, 0, 0)


def test_fields_may_be_given():
    dataset = make_dataset(n_train=100, checksum="its own", notes=("a note",))
    assert (dataset.n_train, dataset.checksum, dataset.notes) == (100, "its own", ("a note",))
    assert make_dataset((3,), samples=8, mean=(0.0, 1.0, 2.0)).mean == (0.0, 1.0, 2.0)


def test_clients_have_the_asked_sizes_and_two_classes_each():
    dataset = make_dataset(classes=5, samples=200)
    partition = make_clients(dataset, [9, 4, 7], tests=[3, 0, 20])
    assert [len(index) for index in partition.train] == [9, 4, 7]
    assert [len(index) for index in partition.test] == [3, 0, 20]
    assert [set(dataset.labels[index]) for index in partition.train] == [{0, 1}, {1, 2}, {2, 3}]
    everything = np.concatenate([*partition.train, *partition.test])
    assert len(set(everything)) == len(everything)
