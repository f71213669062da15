"""Keyed random streams.

Randomness is keyed, not sequential: each (seed, purpose, round, client) has its own stream, so that results
do not depend on the backend, the order of clients or interruptions.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor


def _key(seed: int, purpose: str, round: int, client: int) -> np.random.SeedSequence:
    return np.random.SeedSequence([seed, zlib.crc32(purpose.encode()), round, client])


def generator(seed: int, purpose: str, round: int = 0, client: int = 0) -> np.random.Generator:
    """The NumPy generator of one stream.

    >>> bool(generator(0, "batches", 3, 7).random() == generator(0, "batches", 3, 7).random())
    True
    """
    return np.random.Generator(np.random.Philox(_key(seed, purpose, round, client)))


def integer_seed(seed: int, purpose: str, round: int = 0, client: int = 0) -> int:
    """A 63-bit seed of one stream, for generators other than NumPy's."""
    return int(_key(seed, purpose, round, client).generate_state(1, np.uint64)[0] >> 1)


def hash32(x: Tensor) -> Tensor:
    """A bijective hash of 32-bit integers stored as int64 (Wellons' lowbias32)."""
    x = x & 0xFFFFFFFF
    x = (x ^ (x >> 16)) * 0x7FEB352D & 0xFFFFFFFF
    x = (x ^ (x >> 15)) * 0x846CA68B & 0xFFFFFFFF
    return x ^ (x >> 16)
