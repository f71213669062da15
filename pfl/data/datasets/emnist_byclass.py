"""EMNIST ByClass: 814,255 grey handwritten digits and letters, 62 classes, 28x28 (Cohen et al., 2017)."""

from __future__ import annotations

from pfl.data.datasets._emnist import CHARACTERS, emnist

emnist_byclass = emnist("byclass", CHARACTERS, samples=814_255)
