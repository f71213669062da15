"""Tiny ImageNet: 110,000 labelled colour photographs of 200 classes, 64x64 (Stanford CS231n, 2015)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pfl.data.archive import Tree, open_tree
from pfl.data.cache import ArrayWriter, Content
from pfl.data.datasets._image_folder import Labelled, append_images, find_images
from pfl.data.definition import Definition, RemoteFile

_FOLDER = "tiny-imagenet-200"


def read(files: Sequence[Path], out: ArrayWriter) -> Content:
    """100,000 training images, then the 10,000 validation images as the test set.

    The official test set has no labels. The classes are the sorted WordNet ids.
    """
    with open_tree(files[0]) as tree:
        train, _, classes = find_images(tree, test=())
        test = _validation(tree, classes)
        out.expect(len(train) + len(test))
        append_images(tree, train + test, out, "RGB")
    return Content(classes, n_train=len(train))


def _validation(tree: Tree, classes: Sequence[str]) -> list[Labelled]:
    """The validation images sorted by class and file name; a line of the list has file, WordNet id, box."""
    lines = tree.read(f"{_FOLDER}/val/val_annotations.txt").decode().splitlines()
    rows = sorted((wnid, file) for file, wnid, *_ in (line.split("\t") for line in lines))
    return [Labelled(f"{_FOLDER}/val/images/{file}", classes.index(wnid)) for wnid, file in rows]


tiny_imagenet = Definition(
    shape=(3, 64, 64),
    classes=200,
    samples=110_000,
    read=read,
    files=(RemoteFile("http://cs231n.stanford.edu/tiny-imagenet-200.zip"),),
)
