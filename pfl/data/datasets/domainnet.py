"""DomainNet as in pFedSim: 6 domains, 20 of 345 classes, 30 % of the images, 64x64 (Peng et al., 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from pfl.data.archive import open_tree
from pfl.data.cache import ArrayWriter, Content
from pfl.data.datasets._image_folder import Labelled, append_images
from pfl.data.definition import Definition, RemoteFile
from pfl.data.resize import Resize
from pfl.rng import generator

DOMAINS = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
LABELS = (5, 13, 24, 58, 88, 101, 167, 170, 186, 192, 205, 208, 216, 218, 248, 272, 277, 307, 322, 330)
"""The 20 classes, by their numbers in the official lists. The paper does not name its classes; these are
`numpy.random.default_rng(0).choice(345, 20, replace=False)`."""
SHARE = 0.3

_SITE = "http://csr.bu.edu/ftp/visda/2019/multi-source/"


def read(files: Sequence[Path], out: ArrayWriter) -> Content:
    """A fixed random 30 % of every class and domain; images of the official training lists come first.

    ``files`` are the domains' archives, then for each domain the lists of training and test images.
    """
    archives, lists = files[: len(DOMAINS)], files[len(DOMAINS) :]
    splits: dict[str, list[list[Labelled]]] = {"train": [], "test": []}
    names: dict[int, str] = {}
    for d in range(len(DOMAINS)):
        drawn = _draw(d, *(_entries(path) for path in lists[2 * d : 2 * d + 2]))
        for split, images in zip(splits.values(), drawn, strict=True):
            names.update((image.label, Path(image.name).parts[1]) for image in images)
            split.append([Labelled(image.name, LABELS.index(image.label)) for image in images])
    n_train, n_test = (sum(map(len, split)) for split in splits.values())
    out.expect(n_train + n_test)
    with ExitStack() as stack:
        trees = [stack.enter_context(open_tree(path)) for path in archives]
        for split in splits.values():
            for d, images in enumerate(split):
                if images:
                    domain = np.full(len(images), d)
                    append_images(trees[d], images, out, "RGB", Resize(64, 64), domain=domain)
    return Content(tuple(names[label] for label in LABELS), n_train, DOMAINS)


def _entries(path: Path) -> list[Labelled]:
    """The images of the chosen classes in an official list, whose lines are "domain/class/file number"."""
    lines = (line.rpartition(" ") for line in path.read_text(encoding="utf-8").splitlines())
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
            # clipart and painting: the version cleaned of duplicates, which the official lists refer to
            RemoteFile(f"{_SITE}{'groundtruth/' if domain in ('clipart', 'painting') else ''}{domain}.zip")
            for domain in DOMAINS
        ),
        *(
            RemoteFile(f"{_SITE}domainnet/txt/{domain}_{split}.txt")
            for domain in DOMAINS
            for split in ("train", "test")
        ),
    ),
)
