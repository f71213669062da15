"""Classes that are declared and those that have images; folders and files that are no images."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import pfl
from pfl.core.errors import DataWarning, InvalidInput
from pfl.data.dataset import load
from tests.command import python
from tests.refusal import refusal

IMAGES = np.zeros((12, 8, 8), np.uint8)


def arrays(folder: Path, labels: object, **more: object) -> str:
    np.savez(folder / "mine.npz", images=IMAGES, labels=labels, **more)
    return str(folder / "mine.npz")


@pytest.mark.parametrize(
    ("labels", "more", "note"),
    [
        (np.arange(12) % 3 + 1, {}, "1 class of 4 without images: '0'"),
        (np.array([0, 1, 7])[np.arange(12) % 3], {}, "5 classes of 8 without images: '2', '3', '4', '5'"),
        (np.array([0, 255])[np.arange(12) % 2], {}, "254 classes of 256 without images: '1', '2', '3', '4'"),
        (np.arange(12) % 2, {"classes": ["a", "b", "c"]}, "1 class of 3 without images: 'c'"),
        (np.arange(12) // 6, {"n_train": 6}, "1 class of 2 without training images: '1'"),
        (np.arange(12) // 6, {"n_train": 6}, "1 class of 2 without test images: '0'"),
        (np.zeros(12, int), {"classes": ["cat"]}, "all images are of one class, 'cat': the accuracy of"),
    ],
)
def test_classes_without_images_or_others_are_named_in_a_warning(labels, more, note, tmp_path):
    with pytest.warns(DataWarning) as warned:
        data = load(arrays(tmp_path, labels, **more), progress=False)
    assert any(note in str(warning.message) for warning in warned)
    assert any(note in own for own in data.notes)


@pytest.mark.filterwarnings("error")
def test_classes_that_all_have_images_are_not_remarked_on(tmp_path):
    assert load(arrays(tmp_path, np.arange(12) % 3, n_train=9), progress=False).notes == ()


def test_a_class_name_that_occurs_twice_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match=r"mine\.npz .*'a' occurs twice"):
        load(arrays(tmp_path, np.arange(12) % 3, classes=["a", "b", "a"]), progress=False)
    samples = type("Samples", (list,), {"classes": ["a", "a"]})([(IMAGES[0], 0), (IMAGES[0], 1)])
    with pytest.raises(InvalidInput, match="'a' occurs twice"):
        pfl.from_samples(samples)


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ({"classes": ["\ud800", "b"]}, r"classes with names in Unicode, not '\ud800'"),
        ({"domains": ["x"]}, "expected an array domain as well as domains"),
    ],
)
def test_a_name_that_is_no_text_and_names_of_nothing_are_refused(more, complaint, tmp_path):
    with pytest.raises(InvalidInput, match=re.escape(complaint)):
        load(arrays(tmp_path, np.arange(12) % 2, **more), progress=False)


def test_samples_in_memory_have_the_warning_as_well():
    with pytest.warns(DataWarning, match="1 class of 2 without images: '0'"):
        assert pfl.from_samples([(IMAGES[0], 1)]).notes


def test_labels_that_count_from_1_are_explained_in_the_words_of_the_samples():
    features, labels = np.zeros((12, 3)), np.arange(12) % 2 + 1
    with pytest.warns(DataWarning) as warned:
        pfl.from_arrays(features, labels)
    (note,) = (str(warning.message) for warning in warned)
    assert "1 class of 3 without samples: '0' (labels count from 0; subtract 1" in note
    assert "count from" not in " ".join(pfl.from_arrays(features, labels, classes=["x", "a", "b"]).notes)


def test_a_folder_without_images_is_named_in_a_warning(image_folder):
    (image_folder / "train/cow").mkdir()
    with pytest.warns(DataWarning, match="folders without images left out: 'train/cow'"):
        folder = load(str(image_folder), progress=False)
    archive = shutil.make_archive(str(image_folder), "zip", image_folder)
    with pytest.warns(DataWarning, match="folders without images left out: 'train/cow'"):
        assert load(archive, progress=False).checksum == folder.checksum


def test_files_that_are_no_images_are_counted_in_a_warning(image_folder):
    (image_folder / "train/cat/9.heic").write_bytes(b"")
    (image_folder / "labels.csv").write_text("")
    with pytest.warns(DataWarning, match=r"2 files left out, as 'labels\.csv'; images end in \.bmp"):
        load(str(image_folder), progress=False)


@pytest.mark.filterwarnings("error")
def test_hidden_files_and_those_of_operating_systems_are_not_remarked_on(image_folder):
    usual = load(str(image_folder), progress=False).checksum
    for name in (".DS_Store", "train/cat/Thumbs.db", "train/.ipynb_checkpoints/0.png", "__MACOSX/._0.png"):
        (image_folder / name).parent.mkdir(exist_ok=True, parents=True)
        shutil.copy(image_folder / "train/cat/0.png", image_folder / name)
    assert load(str(image_folder), progress=False).checksum == usual


@pytest.mark.parametrize("name", ["Cat", "cat ", "ｃat"])
def test_classes_that_look_alike_are_named_in_a_warning(name, image_folder):
    shutil.copytree(image_folder / "train/dog", image_folder / "train" / name)
    with pytest.warns(DataWarning, match=r"classes '.*at ?' and '.*at ?' look alike"):
        load(str(image_folder), progress=False)


def test_classes_with_numbers_for_names_are_in_numeric_order(image_folder):
    for number in ("2", "10"):
        shutil.copytree(image_folder / "train/cat", image_folder / "numbers" / number)
    assert load(str(image_folder / "numbers"), progress=False).classes == ("2", "10")


@pytest.mark.parametrize(
    ("move", "culprit"),
    [
        (("train", "Train"), "Train/cat/0.png"),
        (("train/cat/0.png", "train/0.png"), "train/0.png"),
        (("test", "Test"), "Test/cat/0.png"),
    ],
)
def test_a_refused_layout_names_an_image(move, culprit, image_folder):
    (image_folder / move[0]).rename(image_folder / move[1])
    assert culprit in refusal(load, str(image_folder), progress=False)


def test_an_image_below_its_class_folder_is_named(image_folder):
    (image_folder / "train/cat/more").mkdir()
    (image_folder / "train/cat/0.png").rename(image_folder / "train/cat/more/0.png")
    with pytest.raises(InvalidInput, match=r"not 'cat/more/0\.png'"):
        load(str(image_folder / "train"), progress=False)


def test_an_unknown_array_is_named(tmp_path):
    with pytest.raises(InvalidInput, match=r"a column names .*, one per sample \(12\), not <U1 \(1,\)"):
        load(arrays(tmp_path, np.arange(12) % 3, names=["a"]), progress=False)
    np.savez(tmp_path / "other.npz", x=IMAGES, y=np.arange(12))
    with pytest.raises(InvalidInput, match="not 'x', 'y'"):
        load(str(tmp_path / "other.npz"), progress=False)


def test_arrays_in_fortran_order_have_the_same_pixels(tmp_path):
    images = np.arange(12 * 8 * 8, dtype=np.uint8).reshape(12, 8, 8)
    checksums = []
    for name, order in (("c", np.ascontiguousarray), ("f", np.asfortranarray)):
        np.savez(tmp_path / f"{name}.npz", images=order(images), labels=np.arange(12))
        checksums.append(load(str(tmp_path / f"{name}.npz"), progress=False).checksum)
    assert checksums[0] == checksums[1]


# ---- links and names ------------------------------------------------------------------------------------


def test_linked_images_and_folders_are_read(image_folder, tmp_path):
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "train").symlink_to(image_folder / "train")
    (linked / "test/cat").mkdir(parents=True)
    (linked / "test/cat/0.png").symlink_to(image_folder / "test/cat/0.png")
    (linked / "test/dog").symlink_to(image_folder / "test/dog")
    assert load(str(linked), progress=False).checksum == load(str(image_folder), progress=False).checksum


@pytest.mark.parametrize(
    ("target", "reason"), [("absent.png", "leads nowhere"), ("9.png", "leads nowhere"), (".", "around it")]
)
def test_a_link_that_leads_nowhere_or_around_is_refused_by_name(target, reason, image_folder):
    (image_folder / "train/cat/9.png").symlink_to(target)
    with pytest.raises(InvalidInput, match=rf"'train/cat/9\.png' is a link .*{reason}"):
        load(str(image_folder), progress=False)


def test_a_pipe_among_the_images_is_refused_and_not_waited_for(image_folder):
    os.mkfifo(image_folder / "train/cat/9.png")
    with pytest.raises(InvalidInput, match=r"'train/cat/9\.png' is a device, pipe or socket"):
        load(str(image_folder), progress=False)


def test_file_names_that_are_not_utf8_are_refused(image_folder):
    (image_folder / "train/cat").rename(image_folder / "train" / os.fsdecode(b"c\xe4t"))
    with pytest.raises(InvalidInput, match=r"file names in UTF-8, not b'train/c\\xe4t/"):
        load(str(image_folder), progress=False)


@pytest.mark.parametrize(
    "locale", [{"LC_ALL": "C.UTF-8"}, {"LC_ALL": "C"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}]
)
def test_names_are_the_same_in_every_locale(locale, image_folder):
    for split in ("train", "test"):
        (image_folder / split / "cat").rename(image_folder / split / "Kätzchen")
    expected = load(str(image_folder), progress=False)
    code = (
        "import sys; from pfl.data.dataset import load; data = load(sys.argv[1], progress=False); "
        "print(data.checksum, data.source['files'][0]['sha256'], ascii(data.classes))"
    )
    said = python("-c", code, image_folder, env=locale).stdout
    digest = expected.source["files"][0]["sha256"]
    assert said.split(maxsplit=2) == [expected.checksum, digest, f"{expected.classes!a}\n"]


def test_pfl_partition_prints_every_name_and_the_warnings_in_a_line(image_folder):
    (image_folder / "train/Kätzchen").mkdir()
    command = ["-m", "pfl", "partition", "shards:1,min=2", "--dataset", image_folder, "--clients", "2"]
    run = python(*command, env={"LC_ALL": "C", "PYTHONUTF8": "0"})
    (line,) = run.stderr.splitlines()
    assert line == r"pfl: warning: photos: folders without images left out: 'train/K\xe4tzchen'"
