"""MNIST: 70,000 grey handwritten digits, 28x28 (LeCun et al., 1998)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pfl.data.archive import open_tree
from pfl.data.cache import ArrayWriter, Content
from pfl.data.definition import Definition, RemoteFile
from pfl.data.formats import image_folder
from pfl.data.formats.idx import append_idx, find_idx

CLASSES = tuple(str(label) for label in range(10))

_MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist/"


def read(files: Sequence[Path], out: ArrayWriter) -> Content:
    """Append 60,000 training images, then 10,000 test images, in the official order."""
    out.expect(mnist.samples)
    return Content(CLASSES, n_train=append_idx(((str(path), path.read_bytes()) for path in files), out))


def read_copy(files: Sequence[Path], out: ArrayWriter) -> Content:
    """Read a folder or archive of the official files, unpacked or not, or an image folder."""
    with open_tree(files[0]) as tree:
        idx = find_idx(tree, [file.name.removesuffix(".gz") for file in mnist.files])
        if idx is None:
            return image_folder.read(files, out)
        out.expect(mnist.samples)
        return Content(CLASSES, n_train=append_idx(idx, out))


mnist = Definition(
    shape=(1, 28, 28),
    classes=10,
    samples=70_000,
    read=read,
    files=(
        RemoteFile(_MIRROR + "train-images-idx3-ubyte.gz", md5="f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        RemoteFile(_MIRROR + "train-labels-idx1-ubyte.gz", md5="d53e105ee54ea40749a09fcbcd1e9432"),
        RemoteFile(_MIRROR + "t10k-images-idx3-ubyte.gz", md5="9fb629c4189551a2d022fa330f9573f3"),
        RemoteFile(_MIRROR + "t10k-labels-idx1-ubyte.gz", md5="ec29112dd5afa0611ce80d1b7f02629c"),
    ),
    alternative=read_copy,
    # From a copy whose pixels and labels equal those of the four official files byte for byte.
    content="28e0a3c69b91244c7cad5062e0aa95719769d1e29457ad6e4b231ce2182fe064",
)
