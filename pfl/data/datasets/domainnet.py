"""DomainNet as in pFedSim: 6 domains, 20 of 345 classes, 30 % of the images, 64x64 (Peng et al., 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from pfl.core.rng import generator
from pfl.data.archive import Tree, open_tree
from pfl.data.cache import ArrayWriter, Content
from pfl.data.definition import Definition, RemoteFile
from pfl.data.formats import image_folder
from pfl.data.formats.image_folder import Labelled, append_images
from pfl.data.resize import Resize

DOMAINS = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
LABELS = (5, 13, 24, 58, 88, 101, 167, 170, 186, 192, 205, 208, 216, 218, 248, 272, 277, 307, 322, 330)
"""The 20 classes, by their numbers in the official lists. The paper does not name its classes; these are
`numpy.random.default_rng(0).choice(345, 20, replace=False)`."""
SHARE = 0.3
LISTS = tuple(f"{domain}_{split}.txt" for domain in DOMAINS for split in ("train", "test"))

_SITE = "http://csr.bu.edu/ftp/visda/2019/multi-source/"

# The source publishes no MD5 sums. Those of the archives are from awslabs/Renate
# (src/renate/benchmark/datasets/vision_datasets.py) and shift-happens-benchmark/icml-2022
# (shifthappens/tasks/imagenet_d/imagenet_d.py), those of the lists from Renate and the loader of DDG.
_ARCHIVES = (
    "cd0d8f2d77a4e181449b78ed62bccf1e",
    "720380b86f9e6ab4805bb38b6bd135f8",
    "1ae32cdb4f98fe7ab5eb0a351768abfd",
    "bdc1b6f09f277da1a263389efe0c7a66",
    "dcc47055e8935767784b7162e7c7cca6",
    "658d8009644040ff7ce30bb2e820850f",
)
_LISTS = (
    "b4349693a7f9c05c53955725c47ed6cb",
    "f5ddbcfd657a3acf9d0f7da10db22565",
    "379b50054f4ac2018dca4f89421b92d9",
    "779626b50869edffe8ea6941c3755c71",
    "7db0e7ca73ad9982f6e1f7f3ef372c0a",
    "232b35dc53f26d414686ae579e38d9b5",
    "b732ced3939ac8efdd8c0a889dca56cc",
    "c1a828fdfe216fb109f1c0083a252c6f",
    "8ebf02c2075fadd564705f0dc7cd6291",
    "6098816791c3ebed543c71ffa11b9054",
    "1233bd18aa9a8a200bf4cecf1c34ef3e",
    "d8a222e4672cfd585298aa14d02ea441",
)


def read(files: Sequence[Path], out: ArrayWriter) -> Content:
    """Append a fixed random 30 % of every class and domain, the official training images first.

    ``files`` are the domains' archives, then for each domain the lists of training and test images.
    """
    archives, lists = files[: len(DOMAINS)], files[len(DOMAINS) :]
    with ExitStack() as stack:
        trees = [stack.enter_context(open_tree(path)) for path in archives]
        return _append([path.read_text(encoding="utf-8") for path in lists], trees, out)


def read_copy(files: Sequence[Path], out: ArrayWriter) -> Content:
    """Read the official lists with the domains' unpacked archives, or an image folder without domains."""
    with open_tree(files[0]) as tree:
        if not set(tree.names) & set(LISTS):
            return image_folder.read(files, out)
        return _append([tree.read(name).decode() for name in LISTS], [tree] * len(DOMAINS), out)


def _append(lists: Sequence[str], trees: Sequence[Tree], out: ArrayWriter) -> Content:
    splits: dict[str, list[list[Labelled]]] = {"train": [], "test": []}
    names: dict[int, str] = {}
    for d in range(len(DOMAINS)):
        drawn = _draw(d, *map(_entries, lists[2 * d : 2 * d + 2]))
        for split, images in zip(splits.values(), drawn, strict=True):
            names.update((image.label, Path(image.name).parts[1]) for image in images)
            split.append([Labelled(image.name, LABELS.index(image.label)) for image in images])
    n_train, n_test = (sum(map(len, split)) for split in splits.values())
    out.expect(n_train + n_test)
    for split in splits.values():
        for d, images in enumerate(split):
            if images:
                domain = np.full(len(images), DOMAINS[d])
                append_images(trees[d], images, out, "RGB", Resize(64, 64), stored=True, domain=domain)
    return Content(tuple(names[label] for label in LABELS), n_train)


def _entries(text: str) -> list[Labelled]:
    """The images of the chosen classes in an official list, whose lines are "domain/class/file number"."""
    lines = (line.rpartition(" ") for line in text.splitlines())
    return [Labelled(name, int(label)) for name, _, label in lines if int(label) in LABELS]


def _draw(domain: int, train: list[Labelled], test: list[Labelled]) -> tuple[list[Labelled], list[Labelled]]:
    """`SHARE` of the images of each class, sorted by class and file name; one stream per domain and class."""
    chosen: set[str] = set()
    for label in LABELS:
        names = sorted(image.name for image in train + test if image.label == label)
        rng = generator(0, "domainnet", round=domain, client=label)
        chosen.update(rng.choice(names, round(SHARE * len(names)), replace=False) if names else ())
    first, second = (
        sorted(
            (image for image in split if image.name in chosen), key=lambda image: (image.label, image.name)
        )
        for split in (train, test)
    )
    return first, second


domainnet = Definition(
    shape=(3, 64, 64),
    classes=len(LABELS),
    samples=None,
    read=read,
    files=(
        *(
            # clipart and painting: the version without duplicates, to which the official lists refer
            RemoteFile(
                f"{_SITE}{'groundtruth/' if domain in ('clipart', 'painting') else ''}{domain}.zip", md5
            )
            for domain, md5 in zip(DOMAINS, _ARCHIVES, strict=True)
        ),
        *(RemoteFile(f"{_SITE}domainnet/txt/{name}", md5) for name, md5 in zip(LISTS, _LISTS, strict=True)),
    ),
    alternative=read_copy,
)
