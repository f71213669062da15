"""Asynchronous copies from the host to the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pfl.core.lazy import torch

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


def on_device(values: np.ndarray | Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """``values`` on ``device``, converted there to ``dtype``.

    The copy to a GPU is asynchronous, from page-locked memory, on the current stream.
    """
    tensor = torch.as_tensor(values)
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    moved = tensor.to(device, non_blocking=True)
    return moved if dtype is None else moved.to(dtype)
