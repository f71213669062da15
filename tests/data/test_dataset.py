"""`load`: what it reads, what it keeps, and the one line that it says when it cannot."""

from __future__ import annotations

import json
import resource
import shutil
import warnings
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pfl import testing as kit
from pfl.core.digests import Code
from pfl.core.errors import InvalidInput
from pfl.data.dataset import _decoder, _located, check_dataset, load
from pfl.data.datasets import DATASETS
from pfl.data.datasets.digits import digits
from pfl.data.locate import Located
from pfl.testing.dataset_kit import KIT
from tests.command import python
from tests.data.conftest import write_zip, zipped
from tests.refusal import refusal


@pytest.mark.parametrize("archived", [False, True], ids=["folder", "zip"])
def test_an_image_folder_is_pooled_train_first_in_class_and_file_order(image_folder, archived):
    photos = load(str(zipped(image_folder) if archived else image_folder), progress=False)
    n = np.arange(8)
    assert photos.images.shape == (8, 3, 4, 5)
    np.testing.assert_array_equal(photos.images[:, :, 0, 0], np.stack([n, 10 * n, 200 - n], axis=1))
    np.testing.assert_array_equal(photos.images.min((2, 3)), photos.images.max((2, 3)))
    assert photos.labels.tolist() == [0, 0, 0, 1, 1, 1, 0, 1]
    assert (photos.name, photos.classes, photos.n_train) == ("photos", ("cat", "dog"), 6)


def test_a_folder_of_classes_alone_has_training_images_only(image_folder):
    data = load(str(image_folder / "train"), progress=False)
    assert (data.classes, len(data.labels), data.n_train) == (("cat", "dog"), 6, 6)


def test_a_class_may_be_called_train(image_folder):
    (image_folder / "train" / "dog").rename(image_folder / "train" / "train")
    loaded = load(str(image_folder / "train"), progress=False)
    assert (loaded.classes, loaded.n_train) == (("cat", "train"), 6)


def test_images_in_another_split_than_train_and_test_are_refused(image_folder):
    shutil.copytree(image_folder / "test", image_folder / "val")
    with pytest.raises(InvalidInput, match=r"^dataset: .*images in train/ and test/ only, not val/cat/0"):
        load(str(image_folder), progress=False)


@pytest.mark.parametrize("splits", [("train", "val"), ("Train", "Test"), ("train", "valid", "test")])
def test_splits_without_class_folders_are_not_taken_for_classes(tmp_path, splits):
    for split in splits:
        (tmp_path / split).mkdir()
        Image.new("L", (5, 4)).save(tmp_path / split / "1.png")
    assert "image files in train/<class>/ and test/<class>/" in complaint(tmp_path)


@pytest.mark.parametrize("rule", KIT.rules)
def test_an_image_folder_meets_a_rule_of_the_kit(rule, image_folder):
    kit.check_dataset(image_folder, rules=[rule])


def test_the_digits_meet_all_rules_of_the_kit():
    kit.check_dataset("digits")


def test_grey_images_have_one_channel_and_a_single_colour_image_makes_it_three(image_folder):
    for path in sorted(image_folder.rglob("*.png")):
        Image.open(path).convert("L").save(path)
    assert load(str(image_folder), progress=False).shape == (1, 4, 5)
    Image.new("RGB", (5, 4), "red").save(image_folder / "test/dog/0.png")
    assert load(str(image_folder), progress=False).shape == (3, 4, 5)


def test_a_folder_around_train_and_test_and_files_that_are_no_images_do_not_matter(image_folder):
    around = image_folder.parent / "around" / "inner"
    shutil.copytree(image_folder, around)
    (around / "train/cat/notes.txt").write_text("no image")
    (around / "train/cat/._0.png").write_bytes(b"what a Mac leaves in a zip")
    around_it = load(str(zipped(around.parent)), progress=False)
    assert around_it.checksum == load(str(image_folder), progress=False).checksum


def test_torch_takes_mapped_images_without_a_warning(image_folder):
    photos = load(str(image_folder), progress=False)
    with warnings.catch_warnings(action="error"):
        torch.from_numpy(photos.images)


def test_a_write_to_the_images_does_not_reach_the_cache(image_folder):
    photos = load(str(image_folder), progress=False)
    pixels = photos.images.tolist()
    photos.images[:] += 1
    assert load(str(image_folder), progress=False).images.tolist() == pixels


def test_the_second_load_decodes_nothing_and_a_changed_file_is_decoded_again(image_folder, monkeypatch):
    first = load(str(image_folder), progress=False)
    with monkeypatch.context() as patch:
        patch.setattr("pfl.data.formats.image_folder.decode", None)
        assert load(str(image_folder), progress=False).checksum == first.checksum
    Image.new("RGB", (5, 4), "red").save(image_folder / "train/cat/0.png")
    assert load(str(image_folder), progress=False).checksum != first.checksum


@pytest.mark.parametrize("name", ["digest_of_modules", "version"])
def test_other_code_or_another_pillow_decodes_again(name, image_folder, own_cache, monkeypatch):
    load(str(image_folder), progress=False)
    before = len(list(own_cache.glob("photos-*")))
    monkeypatch.setattr(f"pfl.data.dataset.{name}", lambda _: "another")
    load(str(image_folder), progress=False)
    assert len(list(own_cache.glob("photos-*"))) == before + 1


@pytest.mark.parametrize("name", ["photos", "digits", "mnist", "emnist_byclass", "domainnet"])
def test_the_key_covers_the_code_that_decodes_and_no_other(name, image_folder, monkeypatch):
    monkeypatch.setattr(
        "pfl.data.dataset.digest_of_modules", lambda modules: " ".join(Code().reached(modules))
    )
    if name == "photos":
        located = _located(str(image_folder), None, Path("data/raw"))
    else:
        located = Located(name, "official", DATASETS[name].read, definition=DATASETS[name])
    covered = set(_decoder(located).partition(",")[0].split())
    assert {f"pfl.data.{module}" for module in ("cache", "resize", "statistics")} < covered
    assert covered.isdisjoint(
        f"pfl.data.{module}" for module in ("dataset", "locate", "download", "checksum")
    )
    assert name == "photos" or f"pfl.data.datasets.{name}" in covered
    assert name == "digits" or {"pfl.data.archive", "pfl.data.pixels"} < covered
    assert ("pfl.data.formats.idx" in covered) == ("mnist" in name)


def test_loads_at_once_agree_and_leave_one_cache_entry(image_folder, own_cache):
    with ThreadPoolExecutor(4) as pool:
        loads = list(pool.map(lambda _: load(str(image_folder), progress=False), range(4)))
    assert len({photos.checksum for photos in loads}) == 1
    assert len(list(own_cache.glob("*photos-*"))) == 1


@pytest.mark.parametrize("file", ["images.bin", "labels.npy", "meta.json"])
@pytest.mark.parametrize("left", [None, 0, 50])
def test_a_damaged_cache_entry_is_made_again(file, left, image_folder, own_cache, caplog):
    images = load(str(image_folder), progress=False).images.tolist()
    (entry,) = own_cache.glob("*photos-*")
    content = (entry / file).read_bytes()
    (entry / file).unlink()
    if left is not None:
        (entry / file).write_bytes(content[:left])
    assert load(str(image_folder), progress=False).images.tolist() == images
    assert f"{entry} is damaged" in caplog.text
    assert [*own_cache.glob("*photos-*")] == [entry]


def test_the_source_names_what_was_read(image_folder):
    archive = zipped(image_folder)
    (file,) = load(str(archive), progress=False).source["files"]
    assert (file["name"], file["bytes"]) == ("photos.zip", archive.stat().st_size)
    assert len(file["sha256"]) == 64


# ---- bad input -----------------------------------------------------------------------------------------


def complaint(path: object) -> str:
    return refusal(load, str(path), progress=False)


def early_complaint(path: object) -> str:
    """That of `check_dataset`, which `load` must give as well."""
    line = refusal(check_dataset, str(path))
    assert line == complaint(path)
    return line


def test_a_check_knows_a_data_sets_size_without_its_files(tmp_path):
    known = check_dataset("cifar100", raw=tmp_path)
    assert (known.samples, known.classes) == (60_000, 100)


def test_a_check_of_the_users_own_files_decodes_none_of_them(image_folder):
    (image_folder / "train/cat/0.png").write_bytes(b"broken")
    assert check_dataset(str(image_folder)) is None


def test_an_unknown_name_is_answered_with_the_nearest():
    assert "did you mean 'digits'?" in early_complaint("digit")


def test_a_path_with_nothing_there_is_named(tmp_path):
    assert "nothing.zip" in early_complaint(tmp_path / "nothing.zip")


@pytest.mark.parametrize("path", ["", "d" * 300, "photos\n.zip"])
def test_a_path_that_can_be_none_is_one_line(path):
    assert early_complaint(path).startswith("dataset: ")


def test_a_truncated_zip_is_one_clear_line(image_folder):
    archive = zipped(image_folder)
    archive.write_bytes(archive.read_bytes()[:-100])
    assert "photos.zip is not accepted; expected a complete zip" in early_complaint(archive)


def test_a_zip_with_one_changed_pixel_names_the_image(image_folder):
    picture = image_folder / "train/cat/0.bmp"
    Image.new("RGB", (5, 4), (1, 2, 3)).save(picture)
    archive = image_folder.parent / "stored.zip"
    with zipfile.ZipFile(archive, "w") as members:
        for path in sorted(image_folder.rglob("*.*")):
            members.write(path, path.relative_to(image_folder))
    archive.write_bytes(archive.read_bytes().replace(bytes((3, 2, 1)), bytes((4, 2, 1)), 1))
    assert "train/cat/0.bmp is not accepted; expected a complete zip or tar (Bad CRC" in complaint(archive)


def test_an_image_that_does_not_decode_is_named(image_folder):
    picture = image_folder / "train/dog/1.png"
    picture.write_bytes(picture.read_bytes()[:45])
    assert "train/dog/1.png is not accepted; expected a decodable image" in complaint(image_folder)


def test_a_file_that_is_no_image_is_named(image_folder):
    (image_folder / "train/dog/1.png").write_bytes(b"no image")
    assert complaint(image_folder).endswith("a decodable image (its format is unknown)")


def test_an_image_of_another_size_is_named(image_folder):
    Image.new("RGB", (9, 9)).save(image_folder / "test/cat/0.png")
    assert "train/cat/0.png is 5x4 and test/cat/0.png is 9x9" in complaint(image_folder)


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("n_train", [0, -1, 1798, 1442.0])
def test_a_training_set_of_no_valid_size_is_one_line(n_train, monkeypatch):
    def read(files, out):
        return replace(digits.read(files, out), n_train=n_train)

    monkeypatch.setattr("pfl.data.datasets.digits.digits", replace(digits, read=read))
    assert f"expected n_train as an int in [1, 1797], not {n_train}" in complaint("digits")


def test_images_of_sixteen_bits_are_refused(image_folder):
    Image.new("I;16", (5, 4)).save(image_folder / "train/cat/1.png")
    assert "more than 8 bits" in complaint(image_folder)


@pytest.mark.parametrize("missing", ["train", "train/cat", "train/dog"])
def test_a_folder_without_train_or_one_of_its_classes_says_what_is_expected(image_folder, missing):
    shutil.rmtree(image_folder / missing)
    assert "train/" in complaint(image_folder)


def test_a_zip_whose_paths_leave_it_is_refused(tmp_path):
    write_zip(tmp_path / "evil.zip", {"../train/cat/0.png": b""})
    assert "'../train/cat/0.png'" in early_complaint(tmp_path / "evil.zip")


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    assert ".zip" in early_complaint(tmp_path / "notes.txt")


def test_a_cache_folder_that_cannot_be_written_is_named(image_folder, tmp_path, monkeypatch):
    (tmp_path / "occupied").write_text("a file, where a folder should be")
    monkeypatch.setenv("PFL_CACHE", str(tmp_path / "occupied"))
    assert "PFL_CACHE" in complaint(image_folder)


def test_a_full_disk_is_one_line_and_leaves_nothing(image_folder, own_cache):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        message = complaint(image_folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "PFL_CACHE" in message
    assert list(own_cache.glob("*photos-*")) == []


def test_a_failed_decode_leaves_nothing_in_the_cache(image_folder, own_cache):
    (image_folder / "test/dog/0.png").write_bytes(b"broken")
    complaint(image_folder)
    assert list(own_cache.glob("*photos-*")) == []


def test_names_are_known_without_importing_what_reads_them():
    heavy = ("torch", "torchvision", "sklearn", "PIL", "matplotlib")
    code = (
        "import sys, json, pfl.data.dataset; from pfl.data.datasets import DATASETS;"
        "from pfl.data.partition import parse_spec, PARTITIONS;"
        "[DATASETS[name] for name in DATASETS]; [PARTITIONS[name] for name in PARTITIONS];"
        f"print(json.dumps([name for name in {heavy} if name in sys.modules]))"
    )
    assert json.loads(python("-c", code).stdout) == []
