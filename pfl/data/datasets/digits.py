"""Handwritten digits embedded in scikit-learn: 1,797 grey 8x8 images, 10 classes (Alpaydin, Kaynak, 1998)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pfl.data.cache import ArrayWriter, Content
from pfl.data.definition import Definition


def read(_files: Sequence[Path], out: ArrayWriter) -> Content:
    """Scale grey levels from 0..16 to 0..255; every fifth image of a class is a test image."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.rint(digits.images * (255 / 16)).astype(np.uint8)[:, None]
    is_test = np.zeros(len(images), bool)
    for label in range(10):
        is_test[np.flatnonzero(digits.target == label)[4::5]] = True
    order = np.argsort(is_test, kind="stable")
    out.append(images[order], digits.target[order])
    return Content(tuple(map(str, range(10))), n_train=int((~is_test).sum()))


digits = Definition(
    shape=(1, 8, 8),
    classes=10,
    samples=1797,
    read=read,
    content="21bc83478de46e782a8338f85715c5af52274fdf5fb0f291d81671a42cbec2c1",
)
