"""Sensitivity of a client's loss to its parameters."""

from __future__ import annotations

from pfl.engine.types import Tensor


def sensitivity(start: Tensor, end: Tensor) -> Tensor:
    """Elementwise |(end - start) end|: the first-order change of the loss if the element were 0, with the
    update instead of the gradient (FedCAC, Eq. 5)."""
    return ((end - start) * end).abs()
