"""The loaders of the official data sets, each on a small file of the real format."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import json
import os
import pickle
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pfl.core.errors import InvalidInput
from pfl.data.dataset import Dataset, load
from pfl.data.datasets import DATASETS
from pfl.data.datasets.domainnet import DOMAINS, LABELS
from pfl.testing import check_dataset
from tests.data.conftest import idx, random_bytes, write_tar, write_zip
from tests.refusal import refusal


def as_file(array: np.ndarray, kind: str) -> bytes:
    """An image, (H, W) or (H, W, 3), as PNG or JPEG."""
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, kind)
    return buffer.getvalue()


@pytest.fixture
def official(tmp_path, monkeypatch):
    """Loads a data set whose official files lie in tmp_path, their checksums taken for the published ones."""

    def load_it(name: str) -> Dataset:
        definition = DATASETS[name]
        files = tuple(
            dataclasses.replace(file, md5=hashlib.md5((tmp_path / file.name).read_bytes()).hexdigest())
            for file in definition.files
        )
        changed = dataclasses.replace(definition, files=files)
        monkeypatch.setattr("torchvision.datasets.CIFAR10._check_integrity", lambda _: True)
        monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *_: True)
        monkeypatch.setattr(f"pfl.data.datasets.{name}.{name}", changed)
        return load(name, source=tmp_path, raw=tmp_path / "raw", progress=False)

    return load_it


def write_cifar(
    path: Path, batches: Mapping[str, tuple[np.ndarray, Sequence[int]]], key: str, meta: object
) -> None:
    members = {
        name: pickle.dumps({"data": images.reshape(len(images), -1), key: list(labels)}, protocol=2)
        for name, (images, labels) in batches.items()
    }
    folder = next(iter(batches)).partition("/")[0]
    write_tar(
        path, members | {f"{folder}/{'batches.meta' if '10-' in folder else 'meta'}": pickle.dumps(meta)}
    )


class Evil:
    def __reduce__(self):
        return (Path.touch, (Path(os.environ["EVIL"]),))


def test_a_pickle_of_another_checksum_is_refused_unread(tmp_path, monkeypatch):
    monkeypatch.setenv("EVIL", str(tmp_path / "executed"))
    content = pickle.dumps(Evil())
    write_tar(tmp_path / "cifar-10-python.tar.gz", {"cifar-10-batches-py/data_batch_1": content})
    with pytest.raises(InvalidInput, match="c58f30108f718f92721af3b95e74349a, as recorded in pfl"):
        load("cifar10", source=tmp_path, progress=False)
    assert not (tmp_path / "executed").exists()
    pickle.loads(content)  # it would have been
    assert (tmp_path / "executed").exists()


def test_a_file_that_is_not_idx_is_one_line(official, tmp_path):
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (tmp_path / f"{name}-ubyte.gz").write_bytes(gzip.compress(bytes(1000)))
    with pytest.raises(InvalidInput, match="idx"):
        official("mnist")


def test_idx_files_with_more_labels_than_images_are_named(tmp_path):
    folder = tmp_path / "mnist"
    folder.mkdir()
    for part, labels in (("train", 30), ("t10k", 20)):
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(idx(random_bytes(20, 28, 28)))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(gzip.decompress(idx(random_bytes(labels) % 10)))
    line = refusal(load, "mnist", source=tmp_path, progress=False)
    assert "train-images-idx3-ubyte.gz with 20 images and " in line
    assert "train-labels-idx1-ubyte with 30 labels is not accepted; expected one label per image" in line


@pytest.mark.parametrize("gzipped", [True, False])
@pytest.mark.parametrize("left", [-20, 30, 12, 3, 0])
def test_a_truncated_idx_file_is_named(left, gzipped, tmp_path):
    folder = tmp_path / "mnist-copy"
    folder.mkdir()
    write_official("mnist", folder)
    for path in folder.iterdir():
        content = path.read_bytes() if gzipped else gzip.decompress(path.read_bytes())
        path.write_bytes(content[:left] if path.name.startswith("t10k-images") else content)
    line = refusal(load, "mnist", source=tmp_path, progress=False)
    assert f"{folder}: t10k-images-idx3-ubyte.gz is not accepted; expected a complete idx file" in line


def test_tiny_imagenet_has_its_validation_images_for_a_test_set(official, tmp_path):
    write_official("tiny_imagenet", tmp_path)
    loaded = official("tiny_imagenet")
    assert loaded.images.shape == (400, 3, 64, 64)
    assert loaded.labels.tolist() == [*range(200)] * 2
    np.testing.assert_allclose(loaded.images[:, 0, 32, 32], [*range(200)] * 2, atol=1)
    assert (loaded.n_train, loaded.classes) == (200, WNIDS)


@pytest.fixture
def domainnet(official, tmp_path):
    write_official("domainnet", tmp_path)
    return official("domainnet")


def places_of(data: Dataset) -> np.ndarray:
    """The place in `DOMAINS` of each image's domain."""
    return np.array([DOMAINS.index(domain) for domain in data.columns["domain"]])


def test_domainnet_is_three_tenths_of_every_chosen_class_and_domain(domainnet):
    assert domainnet.images.shape == (6 * 20 * 3, 3, 64, 64)
    assert set(domainnet.columns["domain"]) == set(DOMAINS)
    assert domainnet.classes == tuple(f"class_{label:03}" for label in LABELS)
    table = np.zeros((6, 20), np.int64)
    np.add.at(table, (places_of(domainnet), domainnet.labels), 1)
    assert np.all(table == 3)


def test_domainnet_images_lie_beside_their_domain_and_label_training_lists_first(domainnet):
    red, green, blue = domainnet.images[:, :, 32, 32].T.astype(int)
    np.testing.assert_allclose(red, 40 * places_of(domainnet), atol=4)
    np.testing.assert_allclose(green, np.array(LABELS)[domainnet.labels] // 2, atol=4)
    in_training_list = blue < 65
    assert np.all(in_training_list[: domainnet.n_train])
    assert not np.any(in_training_list[domainnet.n_train :])


def leaf(users: Mapping[str, Sequence[tuple[np.ndarray, int]]]) -> str:
    data = {
        user: {"x": [(image / 255).ravel().tolist() for image, _ in rows], "y": [label for _, label in rows]}
        for user, rows in users.items()
    }
    counts = [len(rows) for rows in users.values()]
    return json.dumps({"users": list(data), "num_samples": counts, "user_data": data})


def test_femnist_is_read_from_the_json_files_of_leaf(tmp_path):
    images, labels = random_bytes(6, 28, 28), [0, 61, 35, 10, 9, 1]
    rows = list(zip(images, labels, strict=True))
    for name, content in {
        "train/all_data_0.json": {"f0001_05": rows[:2], "f0000_14": rows[2:3]},
        "train/all_data_1.json": {"f0002_00": rows[3:4]},
        "test/all_data_0.json": {"f0000_14": rows[4:5], "f0001_05": rows[5:]},
        "all_data/all_data_0.json": {"f0000_14": rows},
    }.items():
        (tmp_path / "femnist" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "femnist" / name).write_text(leaf(content))
    loaded = load("femnist", source=tmp_path, progress=False)
    np.testing.assert_array_equal(loaded.images[:, 0], images)
    assert loaded.labels.tolist() == labels
    assert loaded.columns["writer"].tolist() == [0, 0, 1, 2, 1, 0]
    assert loaded.n_train == 4


def test_without_a_split_all_data_of_leaf_are_training_images(tmp_path):
    content = leaf({"f0000_14": [(random_bytes(28, 28), 1)], "f0001_05": [(random_bytes(28, 28), 2)]})
    write_zip(tmp_path / "femnist.zip", {"data/all_data/all_data_0.json": content.encode()})
    loaded = load("femnist", source=tmp_path, progress=False)
    assert (len(loaded.labels), loaded.n_train) == (2, 2)
    assert loaded.columns["writer"].tolist() == [0, 1]


def test_images_of_test_alone_are_no_training_images(tmp_path):
    content = leaf({"f0000_14": [(random_bytes(28, 28), 1)]}).encode()
    members = {"train/all_data_0.json": leaf({}).encode(), "test/all_data_0.json": content}
    write_zip(tmp_path / "femnist.zip", members)
    assert "n_train as an int in [1, 1], not 0" in refusal(load, "femnist", source=tmp_path, progress=False)


def of_a(x: str, y: str) -> str:
    """A file of LEAF's with one user."""
    return f'{{"users": ["a"], "user_data": {{"a": {{"x": {x}, "y": {y}}}}}}}'


IMAGE = str([0.5] * 784)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        *(
            (content, "all_data/all_data_0.json is not accepted")
            for content in ("", '{"users": ["a"]', '{"users": ["a"], "user_data": {}}', "[1]")
        ),
        (of_a(f"[{IMAGE}]", "[62]"), "labels in [0, 61], not from 62 to 62"),
        (of_a(f"[{IMAGE}]", "[1, 2]"), "(2,) for 1 images"),
        (of_a(f"[{IMAGE}]", "[]"), "(0,) for 1 images"),
        (of_a(f"[{IMAGE}]".replace("0.5", "300.0", 1), "[1]"), "x of a"),
        (of_a(f"[{IMAGE}]", "[1]").replace('["a"]', '["a", "a"]'), "different names"),
        (of_a("[]", '[]}, "a": {"x": [], "y": []'), "'a' occurs twice"),
    ],
)
def test_a_wrong_file_of_leafs_is_one_line(content, said, tmp_path):
    write_zip(tmp_path / "femnist.zip", {"all_data/all_data_0.json": content.encode()})
    assert said in refusal(load, "femnist", source=tmp_path, progress=False)


@pytest.mark.parametrize("list_of_tests", [b"", b"no tab", b"val_0.JPEG\tn02\t0", b"\xff"])
def test_a_damaged_list_of_tiny_imagenets_is_one_line(list_of_tests, official, tmp_path):
    folder = "tiny-imagenet-200"
    image = as_file(random_bytes(64, 64, 3), "JPEG")
    members = {f"{folder}/train/n01/images/a.JPEG": image, f"{folder}/val/val_annotations.txt": list_of_tests}
    write_zip(tmp_path / f"{folder}.zip", members)
    with pytest.raises(InvalidInput, match=rf"{folder}\.zip is not accepted"):
        official("tiny_imagenet")


def test_an_archive_of_another_data_set_under_the_official_name_is_one_line(official, tmp_path):
    write_zip(tmp_path / "tiny-imagenet-200.zip", {"top/train/n01/images/a.JPEG": b"", "top/val/a.JPEG": b""})
    with pytest.raises(InvalidInput, match=r"with tiny-imagenet-200/val/val_annotations\.txt"):
        official("tiny_imagenet")


def test_femnist_joins_nists_archives_by_class_and_by_writer(official, tmp_path):
    write_official("femnist", tmp_path)
    loaded = official("femnist")
    assert [loaded.classes[label] for label in loaded.labels] == ["A", "b", "7"]
    assert loaded.images[:, 0, 0, 0].tolist() == [10, 20, 30]
    assert loaded.columns["writer"].tolist() == [0, 1, 1]


# ---- the official files, unpacked, and the same images as files -------------------------------------------


ORDERED = ("cifar10", "cifar100", "mnist", "emnist_byclass", "emnist_balanced", "cinic10")
"""Data sets whose small files have the images in the order of their classes, those of training first."""

WNIDS = tuple(f"n{c:08}" for c in range(200))
"""Tiny-ImageNet's classes."""


def write_ordered(name: str, folder: Path) -> np.ndarray:
    """Small official files of a data set of `ORDERED`; its images (n, C, H, W)."""
    classes = DATASETS[name].classes
    labels = [*range(classes)] * 2
    if name in ("cifar10", "cifar100"):
        top = "cifar-10-batches-py" if name == "cifar10" else "cifar-100-python"
        halves = np.split(np.arange(2 * classes), 2)
        batches = {"train": halves[0], "test": halves[1]}
        if name == "cifar10":
            parts = np.split(halves[0], 5)
            batches = {"test_batch": halves[1]}  # their order in the archive does not matter
            batches |= {f"data_batch_{i}": part for i, part in enumerate(parts, 1)}
        images = random_bytes(2 * classes, 3, 32, 32)
        content = {
            f"{top}/{batch}": (images[part], [labels[i] for i in part]) for batch, part in batches.items()
        }
        kind = "labels" if name == "cifar10" else "fine_labels"
        names = [f"class {c:03}" for c in range(classes)]
        meta = {f"{kind.removesuffix('s')}_names": names}
        write_cifar(folder / DATASETS[name].files[0].name, content, kind, meta)
        return images
    if name == "mnist":
        images = random_bytes(20, 28, 28)
        for part, content in zip(("train", "t10k"), np.split(images, 2), strict=True):
            (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(idx(content))
            (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(idx(np.arange(10, dtype=np.uint8)))
        return images[:, None]
    if name.startswith("emnist"):
        images = random_bytes(2 * classes, 28, 28)
        members = {}
        for part, content in zip(("train", "test"), np.split(images, 2), strict=True):
            place = f"gzip/emnist-{name.removeprefix('emnist_')}-{part}"
            members[f"{place}-images-idx3-ubyte.gz"] = idx(content)
            members[f"{place}-labels-idx1-ubyte.gz"] = idx(np.arange(classes, dtype=np.uint8))
        write_zip(folder / "gzip.zip", members)
        return images.transpose(0, 2, 1)[:, None]  # letters upright
    places = [f"{split}/class{c}/image.png" for split in ("train", "valid", "test") for c in range(10)]
    images = random_bytes(30, 32, 32, 3)
    images[0] = images[0, :, :, :1]
    members = {place: as_file(image, "PNG") for place, image in zip(places, images, strict=True)}
    members[places[0]] = as_file(images[0, :, :, 0], "PNG")  # some of its images are grey
    write_tar(folder / "CINIC-10.tar.gz", members | {"README.md": b"text"})
    return images.transpose(0, 3, 1, 2)


def write_official(name: str, folder: Path) -> None:
    """Small official files of a data set, with at least a training and a test image of every class."""
    if name in ORDERED:
        write_ordered(name, folder)
    elif name == "tiny_imagenet":
        write_tiny_imagenet(folder)
    elif name == "domainnet":
        write_domainnet(folder)
    elif name == "femnist":
        write_femnist(folder)


def write_tiny_imagenet(folder: Path) -> None:
    """A training and a validation image of each class, of its grey level."""
    top = "tiny-imagenet-200"
    members = {f"{top}/wnids.txt": "\n".join(WNIDS).encode()}
    annotations = []
    for c, wnid in enumerate(WNIDS):
        grey = as_file(np.full((64, 64), c, np.uint8), "JPEG")  # some of its images are
        members[f"{top}/train/{wnid}/images/{wnid}_0.JPEG"] = grey
        members[f"{top}/train/{wnid}/{wnid}_boxes.txt"] = b"0\t0\t9\t9"
        members[f"{top}/val/images/val_{199 - c}.JPEG"] = grey
        annotations.append(f"val_{199 - c}.JPEG\t{wnid}\t0\t0\t9\t9\n")
    members[f"{top}/val/val_annotations.txt"] = "".join(sorted(annotations)).encode()
    members[f"{top}/test/images/test_0.JPEG"] = as_file(random_bytes(64, 64, 3), "JPEG")
    write_zip(folder / f"{top}.zip", members)


def write_domainnet(folder: Path) -> None:
    """In each domain, 10 images of each chosen class, 7 in the training list, and of a class not chosen."""
    for d, domain in enumerate(DOMAINS):
        members, lists = {}, {"train": "", "test": ""}
        for label in (*LABELS, 0):
            for i in range(10):
                name = f"{domain}/class_{label:03}/{domain}_{label:03}_{i:06}.jpg"
                colour = (40 * d, label // 2, 10 * i)
                members[name] = as_file(np.full((100, 80, 3), colour, np.uint8), "JPEG")
                lists["train" if i < 7 else "test"] += f"{name} {label}\n"
        write_zip(folder / f"{domain}.zip", members)
        for split, lines in lists.items():
            (folder / f"{domain}_{split}.txt").write_text(lines)


def write_femnist(folder: Path) -> None:
    """An A, a b and a 7, by two writers."""
    a, b, seven = (as_file(np.full((128, 128), level, np.uint8), "PNG") for level in (10, 20, 30))
    by_class = {
        "by_class/41/hsf_0/hsf_0_00000.png": a,
        "by_class/62/hsf_1/hsf_1_00000.png": b,
        "by_class/37/hsf_4/hsf_4_00000.png": seven,
        "by_class/37/hsf_4.mit": b"text",
        "by_class/37/train_37/train_37_00000.png": a,  # LEAF leaves these folders out
    }
    by_write = {
        "by_write/hsf_1/f0009_00/l0009_00/l0009_00_00000.png": b,
        "by_write/hsf_0/f0000_14/u0000_14/u0000_14_00000.png": a,
        "by_write/hsf_4/f0009_00/d0009_00/d0009_00_00000.png": seven,
    }
    write_zip(folder / "by_class.zip", by_class)
    write_zip(folder / "by_write.zip", by_write)


def export(data: Dataset, folder: Path) -> None:
    """The images of a data set as an image folder."""
    for i, (image, label) in enumerate(zip(data.images, data.labels, strict=True)):
        split = "train" if i < data.n_train else "test"
        path = folder / split / data.classes[label] / f"image {i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.asarray(image).transpose(1, 2, 0)
        Image.fromarray(pixels[:, :, 0] if len(image) == 1 else pixels).save(path)


LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
CLASSES = {
    "cifar10": tuple(f"class {c:03}" for c in range(10)),
    "cifar100": tuple(f"class {c:03}" for c in range(100)),
    "mnist": tuple("0123456789"),
    "emnist_byclass": tuple(f"{LETTERS}abcdefghijklmnopqrstuvwxyz"),
    "emnist_balanced": tuple(f"{LETTERS}abdefghnqrt"),
    "cinic10": tuple(f"class{c}" for c in range(10)),
}


@pytest.mark.parametrize("name", ORDERED)
def test_official_files_are_read_in_their_order_training_images_first(name, official, tmp_path):
    images = write_ordered(name, tmp_path)
    loaded = official(name)
    np.testing.assert_array_equal(loaded.images, images)
    assert loaded.classes == CLASSES[name]
    count = len(loaded.classes)
    assert loaded.labels.tolist() == [*range(count)] * (len(images) // count)
    assert loaded.n_train == len(images) - count  # validation images of CINIC-10 are training images
    assert loaded.source["kind"] == "official"


IN_PACKAGES = ("artworks", "schools", "smartwatch")
WITHOUT_FILES = ("digits", *IN_PACKAGES)
WITHOUT_IMAGE_FOLDER = ("femnist", *IN_PACKAGES)
"""Writers are not in an image folder; NIST's archives are folders of images themselves."""
PICKLED = ("cifar10", "cifar100")
"""Unpacked, their files are pickles, which are never read."""


@pytest.mark.parametrize("name", [name for name in DATASETS if name not in WITHOUT_IMAGE_FOLDER])
def test_a_data_set_meets_the_rules_of_the_kit_and_an_image_folder_of_it_has_the_same_content(
    name, official, tmp_path
):
    write_official(name, tmp_path)
    original = load(name) if name in WITHOUT_FILES else official(name)
    check_dataset(original)
    export(original, tmp_path / "copies" / name)
    copy = (
        load(str(tmp_path / "copies" / name), progress=False)
        if name in WITHOUT_FILES
        else load(name, source=tmp_path / "copies", raw=tmp_path / "raw", progress=False)
    )
    assert copy.content == original.content
    assert copy.source["kind"] in ("copy", "image-folder")


@pytest.mark.parametrize("home", [".", "{name}"])
@pytest.mark.parametrize("name", [name for name in DATASETS if name not in (*WITHOUT_FILES, *PICKLED)])
def test_official_files_unpacked_have_the_same_content_and_order(name, home, official, tmp_path):
    write_official(name, tmp_path)
    original = official(name)
    unpacked = tmp_path / "unpacked" / home.format(name=name)
    unpacked.mkdir(parents=True, exist_ok=True)
    for file in DATASETS[name].files:
        path = tmp_path / file.name
        if path.suffix == ".zip" or path.name.endswith(".tar.gz"):
            top = "CINIC-10" if name == "cinic10" else "."
            shutil.unpack_archive(path, unpacked / top)
        elif path.suffix == ".gz":
            (unpacked / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
        else:
            shutil.copy(path, unpacked)
    copy = load(name, source=tmp_path / "unpacked", raw=tmp_path / "raw", progress=False)
    for value in ("content", "checksum", "n_train"):
        assert getattr(copy, value) == getattr(original, value)
    ours, theirs = ({name: c.tolist() for name, c in data.columns.items()} for data in (copy, original))
    assert ours == theirs


def test_tiny_imagenet_with_its_validation_images_in_folders_of_classes_has_the_same_content(
    official, tmp_path
):
    write_official("tiny_imagenet", tmp_path)
    original = official("tiny_imagenet")
    shutil.unpack_archive(tmp_path / "tiny-imagenet-200.zip", tmp_path / "unpacked")
    validation = tmp_path / "unpacked/tiny-imagenet-200/val"
    for line in (validation / "val_annotations.txt").read_text().splitlines():
        file, wnid, *_ = line.split("\t")
        (validation / wnid).mkdir()
        (validation / "images" / file).rename(validation / wnid / file)
    (validation / "val_annotations.txt").unlink()
    copy = load("tiny_imagenet", source=tmp_path / "unpacked", raw=tmp_path / "raw", progress=False)
    assert copy.content == original.content


def test_a_classes_number_serves_as_its_name(official, tmp_path):
    write_official("emnist_balanced", tmp_path)
    original = official("emnist_balanced")
    numbers = dataclasses.replace(original, classes=tuple(map(str, range(47))))
    export(numbers, tmp_path / "copies/emnist_balanced")
    copy = load("emnist_balanced", source=tmp_path / "copies", raw=tmp_path / "raw", progress=False)
    assert copy.content == original.content
