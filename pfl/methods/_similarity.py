"""Distances and cosines between models, in float64 and with the guards of methods.md section 3.7."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pfl.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

ZERO = 1e-12
"""A norm below this counts as 0."""


def squared_distances(models: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> Tensor:
    """||a - b||^2 over all tensors of ``models`` (name to (K, *shape)) and ``others`` (L, *shape): (K, L)."""
    # Without the Gram trick equal models have distance 0 exactly.
    apart = [
        torch.cdist(
            stack.flatten(1).double(),
            others[name].flatten(1).double(),
            compute_mode="donot_use_mm_for_euclid_dist",
        ).square()
        for name, stack in models.items()
    ]
    return torch.stack(apart).sum(0)


def cosines(models: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> Tensor:
    """Cosines over all tensors of ``models`` (name to (K, *shape)) and ``others`` (L, *shape): (K, L).

    0 where a model is 0.
    """
    products = torch.stack(
        [stack.flatten(1).double() @ others[name].flatten(1).double().T for name, stack in models.items()]
    ).sum(0)
    first, second = _norms(models)[:, None], _norms(others)
    nonzero = (first >= ZERO) & (second >= ZERO)
    return torch.where(nonzero, products / (first * second).clamp(min=ZERO), 0.0).clamp(-1, 1)


def _norms(models: Mapping[str, Tensor]) -> Tensor:
    squares = [stack.flatten(1).double().square().sum(1) for stack in models.values()]
    return torch.stack(squares).sum(0).sqrt()
