"""Maximum mean discrepancy between features, which some methods minimise."""

from __future__ import annotations

from collections.abc import Sequence

from pfl.core.lazy import torch
from pfl.engine.types import Batch, Tensor


def discrepancy(batch: Batch, first: Tensor, second: Tensor, widths: Sequence[float | Tensor]) -> Tensor:
    """Squared maximum mean discrepancy of features (B, d) and (B, d), for a sum of Gaussian kernels.

    Args:
        widths: the kernels are exp(-||a - b||^2 / width).
    """

    def mean(x: Tensor, y: Tensor) -> Tensor:
        squares = distances_squared(x, y)
        kernels = torch.stack([torch.exp(-squares / width) for width in widths]).sum(0)
        return batch.sum(batch.sum(kernels)) / batch.sum(torch.ones_like(x[:, 0])) ** 2

    return mean(first, first) + mean(second, second) - 2 * mean(first, second)


def distances_squared(x: Tensor, y: Tensor) -> Tensor:
    """Squared distances (B, B) between the rows of x (B, d) and those of y (B, d)."""
    return x.square().sum(1)[:, None] + y.square().sum(1) - 2 * x @ y.T
