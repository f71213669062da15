"""The images of a convolution as the rows of a matrix, and back, in bfloat16 on a CPU.

The product of these rows with the weights is the convolution (Chellapilla et al., 2006, "High performance
convolutional neural networks for document processing"). With torch's operations, padding, copying and summing
take as long as the product.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch
from torch import Tensor

from pfl.kernels import compiled, pointer, sides_after


def usable(images: Tensor) -> bool:
    """Whether ``images`` will be in bfloat16 on a CPU with kernels for them."""
    on_cpu = images.device.type == "cpu" and torch.is_autocast_enabled("cpu")
    return on_cpu and torch.get_autocast_dtype("cpu") == torch.bfloat16 and _library() is not None


def im2col(images: Tensor, kernel: int, stride: int) -> Tensor:
    """The pixels under the kernel at every position: (B * rows * columns, kernel * kernel * C), tap by tap.

    Args:
        images: (B, C, H, W); they are padded by half the kernel size.
    """
    images = images.contiguous(memory_format=torch.channels_last)
    rows, columns = sides_after(images.shape[2:], kernel, stride, kernel // 2)
    out = images.new_empty((len(images) * rows * columns, kernel * kernel * images.shape[1]))
    _library().im2col(_shape(tuple(images.shape), kernel, stride), pointer(images), pointer(out))
    return out


def col2im(rows: Tensor, shape: tuple[int, int, int, int], kernel: int, stride: int) -> Tensor:
    """The gradient of images of ``shape`` (B, C, H, W), given that of their rows from `im2col`."""
    rows, images = rows.contiguous(), torch.empty(shape, dtype=rows.dtype, memory_format=torch.channels_last)
    _library().col2im(_shape(shape, kernel, stride), pointer(rows), pointer(images))
    return images


@cache
def _library() -> Any:
    """The kernels; None where there are none."""
    return compiled("im2col")


@cache
def _shape(shape: tuple[int, int, int, int], kernel: int, stride: int) -> Any:
    """The kernels' ``Shape``."""
    batch, channels, height, width = shape
    sides = sides_after((height, width), kernel, stride, kernel // 2)
    return (ctypes.c_int * 8)(batch, height, width, channels, *sides, kernel, stride)
