"""CINIC-10: 270,000 colour photographs of CIFAR-10's 10 classes, 32x32 (Darlow et al., 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pfl.data.archive import open_tree
from pfl.data.cache import ArrayWriter, Content
from pfl.data.definition import Definition, RemoteFile
from pfl.data.formats.image_folder import append_images, find_images


def read(files: Sequence[Path], out: ArrayWriter) -> Content:
    """Append 90,000 training and 90,000 validation images as the training set, then 90,000 test images."""
    with open_tree(files[0]) as tree:
        train, test, classes = find_images(tree, train=("train", "valid"))
        out.expect(len(train) + len(test))
        append_images(tree, train + test, out, "RGB", stored=True)
    return Content(classes, n_train=len(train))


cinic10 = Definition(
    shape=(3, 32, 32),
    classes=10,
    samples=270_000,
    read=read,
    files=(
        # The source publishes no MD5. This one is stated by vaseline555/Federated-Learning-in-PyTorch
        # (src/datasets/cinic10.py) and BlackHC/active_learning_redux (batchbald_redux/cinic10.py).
        RemoteFile(
            "https://datashare.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz",
            md5="6ee4d0c996905fe93221de577967a372",
        ),
    ),
    alternative=read,
)
