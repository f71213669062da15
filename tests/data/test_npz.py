"""The user's own arrays."""

from __future__ import annotations

import numpy as np
import pytest

from pfl.core.errors import InvalidInput
from pfl.data.dataset import load
from tests.data.conftest import random_bytes
from tests.refusal import refusal


@pytest.fixture
def arrays():
    return {
        "images": random_bytes(6, 4, 5, 3),
        "labels": np.array([0, 1, 2, 0, 1, 2]),
        "n_train": np.array(4),
        "classes": np.array(["a", "b", "c"]),
        "writer": np.array([5, 5, 5, 9, 9, 9]),
        "domain": np.array([0, 0, 0, 1, 1, 1]),
        "domains": np.array(["photo", "sketch"]),
    }


def test_an_npz_of_the_users_is_read_with_its_writers_and_domains(arrays, tmp_path):
    np.savez(tmp_path / "mine.npz", **arrays)
    loaded = load(str(tmp_path / "mine.npz"), progress=False)
    np.testing.assert_array_equal(loaded.images, arrays["images"].transpose(0, 3, 1, 2))
    assert (loaded.name, loaded.classes, loaded.n_train) == ("mine", ("a", "b", "c"), 4)
    assert loaded.columns["writer"].tolist() == [5, 5, 5, 9, 9, 9]
    assert loaded.columns["domain"].tolist() == ["photo"] * 3 + ["sketch"] * 3


@pytest.mark.parametrize(
    ("shape", "stored"), [((6, 4, 5), (1, 4, 5)), ((6, 3, 4, 5), (3, 4, 5)), ((6, 4, 5, 1), (1, 4, 5))]
)
def test_the_arrays_may_be_grey_or_have_channels_first_or_last(shape, stored, tmp_path):
    np.savez(tmp_path / "mine.npz", images=random_bytes(*shape), labels=np.arange(6) % 2)
    loaded = load(str(tmp_path / "mine.npz"), progress=False)
    assert loaded.shape == stored
    assert (loaded.classes, loaded.n_train) == (("0", "1"), 6)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"labels": None}, "labels"),
        ({"images": np.zeros((6, 4, 5))}, "uint8"),
        ({"images": np.zeros((6, 4, 5, 2), np.uint8)}, "channels"),
        ({"labels": np.array([0, 1, 2])}, "labels"),
        ({"labels": np.array([0, 1, 2, 0, 1, -1])}, "labels"),
        ({"labels": np.array([0, 1, 2, 0, 1, 3])}, "labels below 3"),
        ({"labels": np.array([0.5] * 6)}, "labels"),
        ({"writer": np.array([1])}, "writer"),
        ({"domain": np.array([0, 1, 2, 0, 1, 2])}, "domain below 2, the number of domains"),
        ({"domain": np.array([0, 1, -1, 0, 1, 1])}, "an array domain of non-negative integers"),
        ({"domains": np.array(["photo", "photo"])}, "domains with distinct names"),
        ({"n_train": np.array(7)}, "n_train in [1, 6], an integer"),
        ({"n_train": np.array(4.7)}, "n_train in [1, 6], an integer"),
        ({"n_train": np.array("four")}, "n_train in [1, 6], an integer"),
        ({"n_train": np.array([2, 4])}, "n_train in [1, 6], an integer"),
        ({"classes": np.array("abc")}, "an array classes of names (K,)"),
        ({"domains": np.array("photo")}, "an array domains of names (K,)"),
        ({"labels": np.array([0, 1, 2, 0, 1, 10**15]), "classes": None}, "integers below 100,000"),
        ({"images": np.array([{}] * 6)}, "without pickled objects"),
    ],
)
def test_a_wrong_array_is_one_line_that_names_it(arrays, change, complaint, tmp_path):
    changed = {name: array for name, array in (arrays | change).items() if array is not None}
    np.savez(tmp_path / "mine.npz", **changed)
    assert complaint in refusal(load, str(tmp_path / "mine.npz"), progress=False)


@pytest.mark.parametrize("damage", [lambda b: b[:300], lambda b: b[:200] + bytes(20) + b[220:]])
def test_a_truncated_or_damaged_npz_is_one_line(damage, arrays, tmp_path):
    np.savez_compressed(tmp_path / "mine.npz", **arrays)
    (tmp_path / "mine.npz").write_bytes(damage((tmp_path / "mine.npz").read_bytes()))
    with pytest.raises(InvalidInput, match=r"mine\.npz is not accepted; expected an \.npz file"):
        load(str(tmp_path / "mine.npz"), progress=False)


@pytest.mark.parametrize("shape", [(1, 4, 4), (3, 4, 4)])
def test_flat_square_images_are_unfolded(shape, tmp_path):
    images = random_bytes(5, *shape)
    np.savez(tmp_path / "flat.npz", images=images.reshape(5, -1), labels=np.arange(5))
    assert np.array_equal(load(str(tmp_path / "flat.npz")).images, images)


def test_flat_images_that_are_no_squares_are_refused(tmp_path):
    np.savez(tmp_path / "flat.npz", images=random_bytes(5, 20), labels=np.arange(5))
    with pytest.raises(InvalidInput, match="arrays images, uint8"):
        load(str(tmp_path / "flat.npz"))
