"""EMNIST's archive; each of its splits is a data set (Cohen et al., IJCNN 2017)."""

from __future__ import annotations

import string
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pfl.data.archive import open_tree
from pfl.data.cache import ArrayWriter, Content
from pfl.data.datasets._idx import append_idx
from pfl.data.definition import Definition, RemoteFile

CHARACTERS = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
"""The 62 classes of ByClass, in the order of their labels."""


def emnist(split: str, classes: Sequence[str], samples: int) -> Definition:
    """The definition of one split of the archive, e.g. "byclass"."""

    def read(files: Sequence[Path], out: ArrayWriter) -> Content:
        out.expect(samples)
        counts = []
        with open_tree(files[0]) as tree:
            for part in ("train", "test"):
                member = f"gzip/emnist-{split}-{part}"
                with (
                    tree.open(f"{member}-images-idx3-ubyte.gz") as images,
                    tree.open(f"{member}-labels-idx1-ubyte.gz") as labels,
                ):
                    # NIST stores images column by column; transposed here, so that letters are upright
                    counts.append(append_idx(images, labels, out, lambda block: np.swapaxes(block, 1, 2)))
        return Content(tuple(classes), n_train=counts[0])

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
    )
