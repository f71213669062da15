"""CIFAR-10: 60,000 colour photographs of 10 classes, 32x32 (Krizhevsky, 2009)."""

from __future__ import annotations

from pfl.data.datasets._cifar import cifar
from pfl.data.definition import RemoteFile

cifar10 = cifar(
    classes=10,
    archive=RemoteFile(
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz", md5="c58f30108f718f92721af3b95e74349a"
    ),
    # From a lossless copy with the official counts and the known channel means of the training images,
    # 125.306918, 122.950394 and 113.865383.
    content="8617fdf2298312506d90ae506b4181e3e7b9a7e4c0e98ae445050128b7c326cc",
)
