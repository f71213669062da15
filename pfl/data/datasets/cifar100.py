"""CIFAR-100: 60,000 colour photographs of 100 fine classes, 32x32 (Krizhevsky, 2009)."""

from __future__ import annotations

from pfl.data.datasets._cifar import cifar
from pfl.data.definition import RemoteFile

cifar100 = cifar(
    classes=100,
    archive=RemoteFile(
        "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz", md5="eb9058c3a382ffc7106e4002c42a8d85"
    ),
    # From a lossless copy with the official counts and the known channel means of the training images,
    # 129.304166, 124.069963 and 112.434050.
    content="f3fb448d38912a161928da0f6be410977df1d07dd76552e64922d9e81c07f971",
)
