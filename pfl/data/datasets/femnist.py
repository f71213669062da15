"""FEMNIST: grey handwritten digits and letters by writer, 62 classes, 28x28 (Caldas et al., 2018, LEAF)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from pfl.core.errors import InvalidInput
from pfl.core.files import parse_json
from pfl.data.archive import Tree, open_tree
from pfl.data.cache import ArrayWriter, Content
from pfl.data.datasets._emnist import CHARACTERS
from pfl.data.definition import Definition, RemoteFile
from pfl.data.formats.image_folder import Labelled, append_images
from pfl.data.resize import Resize

_BLOCK = 4096


def read(files: Sequence[Path], out: ArrayWriter) -> Content:
    """Join NIST's archives by_class and by_write by the images they share, as LEAF does.

    by_class/<hexadecimal code>/hsf_<n>/*.png gives the character, by_write/hsf_<n>/<writer>/<form>/*.png the
    writer. All images are training images, sorted by writer.
    """
    with open_tree(files[0]) as by_class, open_tree(files[1]) as by_write:
        return _join(by_class, by_write, out)


def read_copy(files: Sequence[Path], out: ArrayWriter) -> Content:
    """Read a folder or archive with NIST's by_class/ and by_write/, or with LEAF's JSON files."""
    with open_tree(files[0]) as tree:
        folders = {part for folder in tree.folders for part in PurePosixPath(folder).parts[:2]}
        if {"by_class", "by_write"} <= folders:
            return _join(tree, tree, out)
        return _read_leaf(tree, out)


def _join(by_class: Tree, by_write: Tree, out: ArrayWriter) -> Content:
    label_of = {
        _digest(by_class, name): CHARACTERS.index(chr(int(PurePosixPath(name).parts[-3], 16)))
        for name in _pictures(by_class, "by_write")
        if PurePosixPath(name).parts[-2].startswith("hsf")
    }
    names = _pictures(by_write, "by_class")
    names.sort(key=lambda name: (PurePosixPath(name).parts[-3], name))
    writers = {writer: i for i, writer in enumerate(sorted({PurePosixPath(n).parts[-3] for n in names}))}
    out.expect(len(names))
    for start in range(0, len(names), _BLOCK):
        block = names[start : start + _BLOCK]
        writer = np.array([writers[PurePosixPath(name).parts[-3]] for name in block])
        images = [_labelled(by_write, name, label_of) for name in block]
        append_images(by_write, images, out, "L", Resize(28, 28), stored=True, writer=writer)
    return Content(CHARACTERS)


def _pictures(tree: Tree, other: str) -> list[str]:
    """The names of NIST's images in a tree, except those in the folder ``other``."""
    return [name for name in tree.names if name.endswith(".png") and other not in name.split("/")]


def _digest(tree: Tree, name: str) -> bytes:
    return hashlib.md5(tree.read(name), usedforsecurity=False).digest()


def _labelled(tree: Tree, name: str, label_of: dict[bytes, int]) -> Labelled:
    label = label_of.get(_digest(tree, name))
    if label is None:
        raise InvalidInput("dataset", f"{tree.path}: {name}", "an image that is also in by_class.zip")
    return Labelled(name, label)


def _read_leaf(tree: Tree, out: ArrayWriter) -> Content:
    """Read the JSON files of LEAF's preprocessing: the folders train and test, or otherwise all_data.

    A file contains ``users`` and ``user_data``: {user: {"x": [[784 numbers in [0, 1]], ...], "y": [label]}}.
    """
    writers: dict[str, int] = {}
    n_train = count = 0
    folders = {name: PurePosixPath(name).parent.name for name in tree.names if name.endswith(".json")}
    split = {"train", "test"} <= set(folders.values())
    if not split and "all_data" not in folders.values():
        accepted = "LEAF's JSON files, in all_data/ or in train/ and test/, or NIST's by_class/ and by_write/"
        raise InvalidInput("dataset", str(tree.path), f"a folder or archive of {accepted}")
    out.expect(None)
    for folder in ("train", "test") if split else ("all_data",):
        for name in (name for name, its in folders.items() if its == folder):
            for user, images, labels in _users(tree, name):
                writer = writers.setdefault(user, len(writers))
                out.append(images, labels, writer=np.full(len(labels), writer))
                count += len(labels)
        n_train = count if folder != "test" else n_train
    return Content(CHARACTERS, n_train)


def _users(tree: Tree, name: str) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield each writer in a LEAF file: name, images (n, 1, 28, 28), labels (n,)."""
    content = tree.read(name)
    try:
        data = parse_json(content)
        if sorted(data["users"]) != sorted(data["user_data"]):
            raise ValueError("users and user_data have different names")
        for user in data["users"]:
            values = np.array(data["user_data"][user]["x"])
            if values.size and not (values.min() >= 0 and values.max() <= 1):
                raise ValueError(f"x of {user} is not in [0, 1]")
            images = np.rint(values * 255).astype(np.uint8)
            yield user, images.reshape(-1, 1, 28, 28), np.array(data["user_data"][user]["y"], np.int64)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidInput(
            "dataset", f"{tree.path}: {name}", f"a complete file of LEAF ({error!r})"
        ) from error


femnist = Definition(
    shape=(1, 28, 28),
    classes=62,
    samples=None,
    read=read,
    files=(
        # The source publishes no MD5. These are stated by vaseline555/Federated-Learning-in-PyTorch
        # (src/datasets/leaf/leaf_utils.py) and orion-orion/FedCom (custom_ds/femnist.py).
        RemoteFile(
            "https://s3.amazonaws.com/nist-srd/SD19/by_class.zip", md5="79572b1694a8506f2b722c7be54130c4"
        ),
        RemoteFile(
            "https://s3.amazonaws.com/nist-srd/SD19/by_write.zip", md5="a29f21babf83db0bb28a2f77b2b456cb"
        ),
    ),
    alternative=read_copy,
)
