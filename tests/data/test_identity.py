"""What a data set is called by: a checksum with its order, one without, and a phrase."""

from __future__ import annotations

import dataclasses
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pfl.data.cache import content_checksum
from pfl.data.dataset import Dataset, load
from pfl.data.datasets import DATASETS

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (30, 3, 32, 32), np.uint8)
LABELS = np.arange(30) % 10
N_TRAIN = 20


def saved(folder: Path, order: np.ndarray) -> Path:
    """The images as an .npz file, those of each split in ``order``."""
    np.savez(
        folder / "cifar10.npz",
        images=IMAGES[order],
        labels=LABELS[order],
        classes=[f"class {c}" for c in range(10)],
        n_train=N_TRAIN,
    )
    return folder / "cifar10.npz"


def zipped(folder: Path, ending: str = "webp", **options: object) -> Path:
    """The images as files in a zip whose names are their indices within the split."""
    path = folder / "cifar10.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for i, (image, label) in enumerate(zip(IMAGES, LABELS, strict=True)):
            split, number = ("train", i) if i < N_TRAIN else ("test", i - N_TRAIN)
            with archive.open(f"{split}/class {label}/{number:05}.{ending}", "w") as file:
                Image.fromarray(image.transpose(1, 2, 0)).save(file, ending, **options)
    return path


def opened(path: Path) -> Dataset:
    """As the CIFAR-10 of DATA_SOURCE."""
    return load("cifar10", source=path, raw=path.parent / "raw", progress=False)


@pytest.fixture
def original(tmp_path, monkeypatch) -> Dataset:
    """The images in their order, and that they are CIFAR-10's."""
    content = content_checksum(IMAGES, LABELS, N_TRAIN)
    changed = dataclasses.replace(DATASETS["cifar10"], content=content)
    monkeypatch.setattr("pfl.data.datasets.cifar10.cifar10", changed)
    (tmp_path / "original").mkdir()
    return opened(saved(tmp_path / "original", np.arange(30)))


def test_files_that_are_numbered_through_are_in_the_official_order_with_its_checksum(original, tmp_path):
    copy = opened(zipped(tmp_path, lossless=True))
    np.testing.assert_array_equal(copy.images, IMAGES)
    assert copy.labels.tolist() == LABELS.tolist()
    assert (copy.checksum, copy.content) == (original.checksum, original.content)
    assert copy.identity == "original pixels"


@pytest.mark.parametrize("left_out", ["train/class 3/00003.webp", "test/class 0/00000.webp"])
def test_files_whose_numbers_have_a_gap_or_come_twice_are_in_class_and_file_order(left_out, tmp_path):
    whole = zipped(tmp_path, lossless=True)
    named = tmp_path / "renamed.zip"
    with zipfile.ZipFile(whole) as archive, zipfile.ZipFile(named, "w") as copy:
        for name in archive.namelist():
            copy.writestr("train/class 9/00000.webp" if name == left_out else name, archive.read(name))
    labels = load(str(named), progress=False).labels[: N_TRAIN - 1]
    assert labels.tolist() == sorted(labels)


def test_another_order_has_another_checksum_and_the_same_content(original, tmp_path):
    order = np.concatenate((RNG.permutation(N_TRAIN), N_TRAIN + RNG.permutation(10)))
    other = opened(saved(tmp_path, order))
    assert other.checksum != original.checksum
    assert other.content == original.content
    assert other.identity == original.identity == "original pixels"


@pytest.mark.parametrize("what", ["pixel", "label", "split", "twice"])
def test_a_pixel_a_label_a_sample_of_the_other_split_or_a_repeated_one_is_other_content(what):
    images, labels, n_train = IMAGES.copy(), LABELS.copy(), N_TRAIN
    if what == "pixel":
        images[7, 1, 5, 5] ^= 1
    elif what == "label":
        labels[7] = 8
    elif what == "split":
        n_train -= 1
    else:
        images[1], labels[1] = images[0], labels[0]
    assert content_checksum(images, labels, n_train) != content_checksum(IMAGES, LABELS, N_TRAIN)


@pytest.mark.usefixtures("original")
@pytest.mark.parametrize(("ending", "quality"), [("jpeg", 75), ("webp", 80)])
def test_a_lossy_copy_is_told_with_the_format_of_its_files(ending, quality, tmp_path):
    copy = opened(zipped(tmp_path, ending, quality=quality))
    assert copy.identity == f"a copy that differs from the original pixels ({ending} files)"


def test_data_that_cannot_be_compared_are_not_called_original(image_folder, tmp_path, monkeypatch):
    unknown = dataclasses.replace(DATASETS["cifar10"], content=None)
    monkeypatch.setattr("pfl.data.datasets.cifar10.cifar10", unknown)
    copy = opened(zipped(tmp_path, "png"))
    assert copy.identity == "a copy that was not compared with the original pixels (png files)"
    assert load(str(image_folder), progress=False).identity == "own data"


def test_a_second_load_takes_both_checksums_from_the_cache(image_folder, monkeypatch):
    first = load(str(image_folder), progress=False)
    for name in ("ordered_checksum", "content_checksum"):
        monkeypatch.setattr(f"pfl.data.cache.{name}", None)
    again = load(str(image_folder), progress=False)
    assert (again.checksum, again.content) == (first.checksum, first.content)
    assert re.fullmatch("[0-9a-f]{64}", again.content)
