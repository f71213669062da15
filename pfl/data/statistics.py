"""Mean and standard deviation of samples, by which they are normalised.

No checksum of the data covers them, so this file counts as a part of the engine (`pfl.run.fingerprint`).
"""

from __future__ import annotations

import math

import numpy as np

_CHUNK = 4096
"""Number of samples in memory at once."""


def training_statistics(images: np.ndarray, n_train: int) -> dict[str, list[float]]:
    """``mean`` and ``std`` of the first ``n_train`` samples, by which all are normalised.

    Both are empty for tokens, which are not normalised.
    """
    if images.dtype.kind == "f":
        mean, std = _float_statistics(images[:n_train])
    elif images.dtype == np.uint8 and images.ndim == 4:
        mean, std = channel_statistics(images[:n_train])
    else:
        mean, std = [], []
    return {"mean": mean, "std": std}


def channel_statistics(images: np.ndarray) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel of uint8 images (N, C, H, W), scaled to [0, 1].

    The sums are integers, so their order does not matter. A constant channel has standard deviation 0.
    """
    channels = images.shape[1]
    total, squares = [0] * channels, [0] * channels
    for start in range(0, len(images), _CHUNK):
        block = images[start : start + _CHUNK]
        square = np.square(block, dtype=np.uint16)
        for c in range(channels):
            total[c] += int(block[:, c].sum(dtype=np.uint64))
            squares[c] += int(square[:, c].sum(dtype=np.uint64))
    count = images[:, 0].size
    mean = [t / count / 255 for t in total]
    std = [math.sqrt(count * s - t * t) / count / 255 for t, s in zip(total, squares, strict=True)]
    return mean, std


def _float_statistics(samples: np.ndarray) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel of floats (N, C, ...), or of each feature (N, F)."""
    blocks = [slice(start, start + _CHUNK) for start in range(0, len(samples), _CHUNK)]
    inner = tuple(range(2, samples.ndim))
    count = samples[:, 0].size
    mean = sum(samples[part].sum((0, *inner), dtype=np.float64) for part in blocks) / count
    centred = (samples[part] - mean.reshape(-1, *[1] * len(inner)) for part in blocks)
    std = np.sqrt(sum(np.square(block, dtype=np.float64).sum((0, *inner)) for block in centred) / count)
    return mean.tolist(), std.tolist()
