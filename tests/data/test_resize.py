"""Images of another size than their files have."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

import pfl
from pfl.core.errors import InvalidInput
from pfl.data.dataset import check_dataset, load


def test_images_of_several_sizes_get_one(tmp_path):
    for name, size in (("a", (8, 6)), ("b", (5, 9))):
        (tmp_path / "photos" / name).mkdir(parents=True)
        Image.new("RGB", size, (9, 8, 7)).save(tmp_path / "photos" / name / "0.png")
    with pytest.raises(InvalidInput, match=r"images of one size.*,resize=HEIGHTxWIDTH"):
        load(f"{tmp_path}/photos")
    data = load(f"{tmp_path}/photos,resize=4x6")
    assert data.shape == (3, 4, 6)
    assert np.unique(data.images).tolist() == [7, 8, 9]


def test_a_known_data_set_is_resized_and_says_so():
    data = load("digits,resize=16")
    assert data.shape == (1, 16, 16)
    assert data.identity == "resized to 16x16"
    assert load("digits,resize=16,crop").identity == "cropped and resized to 16x16"
    assert check_dataset("digits,resize=16").shape == data.shape
    assert load("digits").shape == (1, 8, 8)


def test_samples_that_are_no_images_cannot_be_resized():
    with pytest.raises(
        InvalidInput, match="resize: samples of 12 is not accepted; expected a data set of images"
    ):
        check_dataset("schools,resize=8")


def test_a_crop_keeps_the_middle_and_the_aspect_ratio():
    image = Image.fromarray(np.tile(np.arange(0, 180, 10, dtype=np.uint8), (6, 1)))
    data = pfl.from_samples([(image, 0), (image, 1)], size=(6, 6), crop=True)
    assert data.images[0, 0, 0].tolist() == [60, 70, 80, 90, 100, 110]


@pytest.mark.parametrize("size", [(6,), [6, 6], (6, 0), (6.5, 6)])
def test_samples_are_resized_to_two_positive_integers(size):
    with pytest.raises(InvalidInput, match=r"^size: .* expected \(height, width\), positive integers$"):
        pfl.from_samples([(np.zeros((8, 8), np.uint8), 0)], size=size)


@pytest.mark.parametrize("size", ["", "0", "8x", "8x8x8", "8,cut", "-8"])
def test_what_is_no_size_is_refused(size):
    with pytest.raises(InvalidInput, match="expected HEIGHTxWIDTH in pixels"):
        check_dataset(f"digits,resize={size}")
