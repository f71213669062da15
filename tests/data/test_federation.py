"""The images of a federation's clients."""

from __future__ import annotations

import dataclasses
import os

import numpy as np
import pytest
import torch

from pfl.data.federation import Federation
from pfl.kernels import compiler
from pfl.testing.synthetic import make_dataset


@pytest.fixture
def mapped(dataset, tmp_path):
    """The tests' data set, with its images in a file."""
    file = tmp_path / "images.bin"
    dataset.images.tofile(file)
    return dataclasses.replace(dataset, images=np.memmap(file, np.uint8, "c", shape=dataset.images.shape))


@pytest.fixture(params=["compiled", "no compiler"])
def reader(request, monkeypatch):
    """What reads the file."""
    if request.param == "no compiler":
        monkeypatch.setattr("pfl.kernels.read_rows.compiled", lambda _: None)
    elif compiler() is None:
        pytest.skip("there is no C++ compiler")


def batch(dataset, partition, index) -> tuple[torch.Tensor, torch.Tensor]:
    return Federation(dataset, partition, torch.device("cpu"), torch.float32).batch(torch.tensor(index))


@pytest.mark.parametrize("index", [[3], [7, 7, 0, 239], [[5, 1], [2, 2]]])
@pytest.mark.usefixtures("reader")
def test_images_in_a_file_are_those_in_memory(dataset, mapped, partition, index):
    images, expected = batch(mapped, partition, index), batch(dataset, partition, index)
    assert torch.equal(images[0], expected[0])
    assert torch.equal(images[1], expected[1])


def test_kernels_find_images_in_their_order_whatever_that_in_memory(partition):
    dataset = make_dataset(shape=(3, 4, 5))
    channels_last = np.ascontiguousarray(dataset.images.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    turned = dataclasses.replace(dataset, images=channels_last)
    federation = Federation(turned, partition, torch.device("cpu"), torch.float32)
    assert federation.images.is_contiguous()
    assert torch.equal(federation.images, torch.from_numpy(dataset.images))


def test_an_edit_of_mapped_images_counts_on_no_device(dataset, mapped, partition):
    mapped.images[:] = 0
    federation = Federation(mapped, partition, torch.device("cpu"), torch.float32)
    assert torch.equal(federation.images, torch.from_numpy(dataset.images))  # copied to a GPU
    assert torch.equal(federation.batch(torch.tensor([3]))[0], batch(dataset, partition, [3])[0])


def test_a_part_of_mapped_images_is_that_part(dataset, mapped, partition):
    part = dataclasses.replace(mapped, images=mapped.images[10:])
    images, _ = batch(part, partition, [0, 4])
    expected, _ = batch(dataset, partition, [10, 14])
    assert torch.equal(images, expected)


@pytest.mark.usefixtures("reader")
def test_a_file_that_was_cut_off_gives_no_numbers(mapped, partition):
    federation = Federation(mapped, partition, torch.device("cpu"), torch.float32)
    os.truncate(mapped.images.filename, 1000)
    with pytest.raises(OSError, match="cut off"):
        federation.batch(torch.tensor([100]))
