"""Tiny ImageNet: 110,000 labelled colour photographs of 200 classes, 64x64 (Stanford CS231n, 2015)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from pfl.data.archive import Tree, open_tree
from pfl.data.cache import ArrayWriter, Content
from pfl.data.definition import Definition, RemoteFile
from pfl.data.formats import image_folder
from pfl.data.formats.image_folder import Labelled, append_images, find_images

_LIST = "val/val_annotations.txt"


def read(files: Sequence[Path], out: ArrayWriter) -> Content:
    """Append 100,000 training images, then the 10,000 validation images as the test set.

    The official test set has no labels. The classes are the sorted WordNet ids.
    """
    with open_tree(files[0]) as tree:
        train, _, classes = find_images(tree, test=())
        test = _validation(tree, classes)
        out.expect(len(train) + len(test))
        append_images(tree, train + test, out, "RGB", stored=True)
    return Content(classes, n_train=len(train))


def read_copy(files: Sequence[Path], out: ArrayWriter) -> Content:
    """Read the unpacked archive, or an image folder with train/<WordNet id>/ and val/<WordNet id>/ or test/.

    If val/ has class folders, test/ is ignored: it has no labels.
    """
    with open_tree(files[0]) as tree:
        if any(name.endswith(_LIST) for name in tree.names):
            return read(files, out)
        train, test, classes = find_images(tree, test=("val",))
        if not test:
            return image_folder.read(files, out)
        out.expect(len(train) + len(test))
        append_images(tree, train + test, out, "RGB", stored=True)
    return Content(classes, n_train=len(train))


def _validation(tree: Tree, classes: Sequence[str]) -> list[Labelled]:
    """The validation images sorted by class and file name; a line of the list has file, WordNet id, box."""
    official = f"tiny-imagenet-200/{_LIST}"  # an unpacked archive may lack the outer folder
    name = next((name for name in tree.names if name.endswith(_LIST)), official)
    lines = tree.read(name).decode().splitlines()
    rows = sorted((wnid, file) for file, wnid, *_ in (line.split("\t") for line in lines))
    folder = name.removesuffix(PurePosixPath(_LIST).name) + "images"
    return [Labelled(f"{folder}/{file}", classes.index(wnid)) for wnid, file in rows]


tiny_imagenet = Definition(
    shape=(3, 64, 64),
    classes=200,
    samples=110_000,
    read=read,
    files=(
        # The source publishes no MD5. This one is stated by ContinualAI/avalanche
        # (avalanche/benchmarks/datasets/tiny_imagenet/tiny_imagenet.py) and by independent loaders.
        RemoteFile(
            "http://cs231n.stanford.edu/tiny-imagenet-200.zip", md5="90528d7ca1a48142e341f4ef8d21d0de"
        ),
    ),
    alternative=read_copy,
)
