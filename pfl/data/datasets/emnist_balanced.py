"""EMNIST Balanced: 131,600 grey handwritten digits and letters, 47 classes, 28x28 (Cohen et al., 2017)."""

from __future__ import annotations

from pfl.data.datasets._emnist import CHARACTERS, emnist

MERGED = "cijklmopsuvwxyz"
"""Lower-case letters that share a class with their capital."""

emnist_balanced = emnist("balanced", [c for c in CHARACTERS if c not in MERGED], samples=131_600)
