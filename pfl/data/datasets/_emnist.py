"""EMNIST's archive; each of its splits is a data set (Cohen et al., IJCNN 2017)."""

from __future__ import annotations

import string
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pfl.data.archive import open_tree
from pfl.data.cache import ArrayWriter, Content
from pfl.data.definition import Definition, RemoteFile
from pfl.data.formats import image_folder
from pfl.data.formats.idx import append_idx, find_idx

CHARACTERS = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
"""The 62 classes of ByClass, in the order of their labels."""


def emnist(split: str, classes: Sequence[str], samples: int) -> Definition:
    """The definition of one split of the archive, e.g. "byclass"."""

    names = [
        f"emnist-{split}-{part}-{kind}-ubyte"
        for part in ("train", "test")
        for kind in ("images-idx3", "labels-idx1")
    ]

    def read(files: Sequence[Path], out: ArrayWriter) -> Content:
        """Read the official archive or its files, unpacked or not, or an image folder of upright letters."""
        with open_tree(files[0]) as tree:
            idx = find_idx(tree, names)
            if idx is None:
                return image_folder.read(files, out)
            out.expect(samples)
            # NIST stores images column by column; transposing them makes the letters upright
            n_train = append_idx(idx, out, lambda block: np.swapaxes(block, 1, 2))
        return Content(tuple(classes), n_train)

    return Definition(
        shape=(1, 28, 28),
        classes=len(classes),
        samples=samples,
        read=read,
        files=(
            RemoteFile(
                "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip", md5="58c8d27c78d21e728a6bc7b3cc06412e"
            ),
        ),
        folder="emnist",
        alternative=read,
    )
