"""A block of convolution, batch norm, ReLU and 2x2 max pooling as one operation on a CPU.

On one thread, torch spends a third of a small network's step in pooling and batch norm, and its convolutions
reach a third of the core's peak where there are few channels: `conv_block.cpp` does better at both. Without
gradients and batch statistics, as in an evaluation, `conv_inference.cpp` takes half its time again: nothing
is kept for a backward pass, and a lane of the processor's vectors is an image.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from pfl.kernels import compiled

MOST_CHANNELS = 10
"""Input channels up to which our convolution is the faster one: at 10 it is, at 12 torch's is level."""

SLACK = 128
"""Numbers behind the convolution that the kernel may read: two vectors, at most."""

_REAL = {torch.float32: "float", torch.float64: "double"}


def conv_block(x: Tensor, conv: Any, norm: Any = None) -> Tensor | None:
    """``max_pool2d(relu(norm(conv(x))), 2)`` for images (B, C, H, W), or None where torch should do it.

    Args:
        conv: a `torch.nn.Conv2d` of stride 1, without padding, with a bias.
        norm: a `torch.nn.BatchNorm2d`, or None where there is none.
    """
    evaluated = not torch.is_grad_enabled() and not (norm and norm.training)
    kernel = _kernel("conv_inference" if evaluated else "conv_block", x, conv, norm)
    if kernel is None:
        return None
    if evaluated:
        return _inferred(x, conv, norm, kernel)
    gamma, beta = (norm.weight, norm.bias) if norm else (None, None)
    out: Tensor = _ConvBlock.apply(x, conv.weight, conv.bias, gamma, beta, norm, kernel)
    return out


def _kernel(name: str, x: Tensor, conv: nn.Conv2d, norm: nn.BatchNorm2d | None) -> ctypes.CDLL | None:
    (_, channels, height, width), size = x.shape, conv.kernel_size[0]
    if (
        channels > MOST_CHANNELS
        or x.device.type != "cpu"
        or x.dtype not in _REAL
        or min(height, width) <= size
        or torch.get_num_threads() > 1
        or torch.is_autocast_enabled("cpu")  # bf16 is torch's own, with a compiler as without
    ):
        return None
    return compiled(
        name,
        REAL=_REAL[x.dtype],
        C=channels,
        H=height,
        W=width,
        O=conv.out_channels,
        K=size,
        NORM=int(norm is not None),
    )


def _inferred(x: Tensor, conv: nn.Conv2d, norm: nn.BatchNorm2d | None, kernel: ctypes.CDLL) -> Tensor:
    assert conv.bias is not None
    n, _, height, width = x.shape
    size = conv.kernel_size[0]
    out = x.new_empty((n, conv.out_channels, (height - size + 1) // 2, (width - size + 1) // 2))
    statistics = (norm.weight, norm.bias, norm.running_mean, norm.running_var) if norm else (None,) * 4
    read = [
        None if tensor is None else tensor.contiguous() for tensor in (x, conv.weight, conv.bias, *statistics)
    ]
    kernel.infer(
        *map(_pointer, read),
        ctypes.c_double(norm.eps if norm else 0),
        _pointer(out),
        ctypes.c_int(n),
    )
    return out


class _ConvBlock(torch.autograd.Function):
    """See `conv_block`."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        gamma: Tensor | None,
        beta: Tensor | None,
        norm: nn.BatchNorm2d | None,
        kernel: ctypes.CDLL,
    ) -> Tensor:
        n, _, height, width = x.shape
        outputs, size = len(bias), weight.shape[-1]
        x, weight, bias = x.contiguous(), weight.contiguous(), bias.contiguous()
        # Its rows are as long as the input's.
        convolved = x.new_empty(n * outputs * (height - size + 1) * width + SLACK)
        moments = x.new_empty((2, outputs))
        out = x.new_empty((n, outputs, (height - size + 1) // 2, (width - size + 1) // 2))
        training = norm is not None and norm.training
        kernel.forward(
            *map(_pointer, (x, weight, bias, gamma, beta)),
            *map(_pointer, (norm.running_mean, norm.running_var) if norm else (None, None)),
            ctypes.c_double(norm.momentum or 0 if norm else 0),
            ctypes.c_double(norm.eps if norm else 0),
            ctypes.c_int(training),
            *map(_pointer, (convolved, moments, out)),
            ctypes.c_int(n),
        )
        ctx.save_for_backward(x, weight, bias, gamma, beta, convolved, moments, out)
        ctx.training, ctx.kernel = training, kernel
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, gamma, beta, convolved, moments, out = ctx.saved_tensors
        gradients = [
            None if tensor is None else torch.empty_like(tensor) for tensor in (x, weight, bias, gamma, beta)
        ]
        if not ctx.needs_input_grad[0]:
            gradients[0] = None  # the images: the most expensive one, and not needed
        gradient = gradient.contiguous()
        ctx.kernel.backward(
            *map(_pointer, (gradient, x, weight, gamma, convolved, moments, out)),
            ctypes.c_int(ctx.training),
            *map(_pointer, gradients),
            ctypes.c_int(len(x)),
        )
        return (*gradients, None, None)


def _pointer(tensor: Tensor | None) -> ctypes.c_void_p | None:
    return None if tensor is None else ctypes.c_void_p(tensor.data_ptr())
