"""A block of convolution, batch norm, residual, ReLU and max pooling, fused into one operation on a CPU.

On one thread, torch spends a third of a network's step in pooling and batch norm, and its convolutions reach
a half to three quarters of the core's peak; `conv_block.cpp` improves on both (``benchmarks.kernels``).

Under bfloat16 autocast, on a CPU with bfloat16 instructions, images and their gradients are in bfloat16;
sums, weights, statistics and their gradients are in float32. On a CPU with Intel AMX, the kernels are those
of `conv_tiles.cpp`, which also compute hidden linear layers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from pfl.kernels import compiled, pointer, sides_after

INSTRUCTIONS = ("AVX2", "AVX512")
"""Instruction sets on which our kernels are faster; measured on AVX2 (``benchmarks.kernels``)."""

FEWEST = {"narrow": 4, "wide": 12}
"""Smallest batches for which our kernels are faster, in networks of at most 16 channels and of more. Smaller
ones leave SIMD lanes idle, and weights are repacked in every step. Measured by the same benchmark."""

FEWEST_BF16 = {"narrow": 4, "wide": 24}
"""The same under bfloat16 autocast."""

FEWEST_TILES = {"narrow": 4, "wide": 4}
"""The same, on a CPU with `tiles`."""

_REAL = {torch.float32: "float", torch.float64: "double"}


@dataclass(frozen=True)
class Pooling:
    """Max pooling of a block, as in `torch.nn.MaxPool2d`."""

    kernel: int
    stride: int
    padding: int = 0


@dataclass(frozen=True)
class Bundles:
    """Images in the layout of the kernels: the same pixel of several images is contiguous.

    Attributes:
        data: the values of all bundles, flat, in the kernels' order; bfloat16 under its autocast.
        shape: (B, C, H, W) of the images.
    """

    data: Tensor
    shape: tuple[int, int, int, int]

    @property
    def tiled(self) -> bool:
        """Whether the kernels multiply them in `tiles`, which is faster than torch."""
        return self.data.dtype == torch.bfloat16 and tiles()

    def images(self) -> Tensor:
        """The images (B, C, H, W)."""
        unpacked: Tensor = _Unpack.apply(self.data, self.shape)
        return unpacked


def usable(x: Tensor, modules: Iterable[nn.Module], width: Literal["narrow", "wide"]) -> bool:
    """Whether a network of ``modules`` uses `conv_block` for its images ``x`` instead of torch's operations.

    The modules must not have forward hooks, as these would see neither inputs nor outputs.
    """
    fewest = FEWEST
    if _stored(x) == torch.bfloat16:
        fewest = FEWEST_TILES if tiles() else FEWEST_BF16
    return (
        len(x) >= fewest[width]
        and x.device.type == "cpu"
        and x.dtype in _REAL
        and torch.get_num_threads() == 1
        and torch.backends.cpu.get_cpu_capability() in INSTRUCTIONS
        and not any(module._forward_hooks or module._forward_pre_hooks for module in modules)
        and _library(_stored(x)) is not None
    )


def conv_block(
    x: Tensor | Bundles,
    conv: Any,
    norm: nn.BatchNorm2d | None = None,
    *,
    relu: bool = True,
    pooling: Pooling | None = None,
    residual: Bundles | None = None,
) -> Bundles:
    """``max_pool2d(relu(norm(conv(x)) + residual))`` for images that are `usable`.

    A residual cannot be combined with pooling.

    Args:
        x: images (B, C, H, W), or the result of another block.
        conv: a `torch.nn.Conv2d` with a square kernel, equal strides and paddings, no dilation and no groups.
    """
    assert residual is None or pooling is None
    convolution = (conv.out_channels, conv.kernel_size[0], conv.stride[0], conv.padding[0])
    images = isinstance(x, Tensor)
    block = _block(tuple(x.shape), convolution, norm is not None, relu, pooling, images)
    inputs = (x.data if isinstance(x, Bundles) else x.to(_stored(x))), conv.weight, conv.bias
    affine = (norm.weight, norm.bias) if norm else (None, None)
    out = _ConvBlock.apply(*inputs, *affine, residual.data if residual else None, block, norm)
    return Bundles(out, block.result)


def linear_block(x: Tensor | Bundles, linear: nn.Linear) -> Bundles:
    """``relu(linear(x))`` in `tiles`, for features (B, d) or the one-pixel images that it returns."""
    convolution = (linear.out_features, 1, 1, 0)
    shape = (x.shape[0], linear.in_features, 1, 1)
    block = _block(shape, convolution, False, True, None, isinstance(x, Tensor))
    data = x.data if isinstance(x, Bundles) else x[:, :, None, None]
    out = _ConvBlock.apply(data, linear.weight, linear.bias, None, None, None, block, None)
    return Bundles(out, block.result)


class _Block:
    """The operations and sizes of a block.

    Attributes:
        shape, convolved, result: (B, C, H, W) of the input, after the convolution, and of the result.
        images: whether the input is images, not bundles.
        c_shape: the kernel's ``Shape``.
    """

    def __init__(
        self,
        shape: tuple[int, int, int, int],
        convolution: tuple[int, int, int, int],
        norm: bool,
        relu: bool,
        pooling: Pooling | None,
        images: bool,
    ):
        batch, channels, height, width = shape
        outputs, kernel, stride, padding = convolution
        sides = sides_after((height, width), kernel, stride, padding)
        pool = (pooling.kernel, pooling.stride, pooling.padding) if pooling else (0, 1, 0)
        self.shape = shape
        self.convolved = (batch, outputs, *sides)
        self.result = (batch, outputs, *(sides_after(sides, *pool) if pooling else sides))
        self.images = images
        self.c_shape = (ctypes.c_int * 13)(channels, height, width, *convolution, norm, relu, *pool, images)


_block = lru_cache(maxsize=1024)(_Block)


def _stored(x: Tensor) -> torch.dtype:
    """The dtype of the bundles of images ``x``."""
    autocast = torch.is_autocast_enabled("cpu") and x.dtype == torch.float32
    return torch.get_autocast_dtype("cpu") if autocast else x.dtype


@cache
def tiles() -> bool:
    """Whether CPU, system and compiler support tiles (Intel AMX), which bfloat16 blocks then use."""
    if not torch.cpu._is_amx_tile_supported():
        return False
    library = compiled("conv_tiles")
    return library is not None and bool(library.available())


@cache
def _library(stored: torch.dtype) -> Any:
    """The kernels for bundles of this dtype; None where there are none."""
    if stored == torch.bfloat16 and tiles():
        library = compiled("conv_tiles")
    elif stored == torch.bfloat16 and torch.cpu._is_avx512_bf16_supported():
        library = compiled("conv_block", REAL="float", BF16=1)
    else:
        library = compiled("conv_block", REAL=_REAL[stored]) if stored in _REAL else None
    if library is not None:
        library.numbers.restype = library.packed_numbers.restype = ctypes.c_int64
    return library


class _ConvBlock(torch.autograd.Function):
    """See `conv_block`."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        gamma: Tensor | None,
        beta: Tensor | None,
        residual: Tensor | None,
        block: _Block,
        norm: nn.BatchNorm2d | None,
    ) -> Tensor:
        kernel = _library(x.dtype)
        x = _packed(kernel, x, block) if block.images else x
        weight = weight.contiguous()
        convolved = _bundles(kernel, x, block.convolved)
        moments = weight.new_empty((3, len(weight)))
        out = _bundles(kernel, x, block.result)
        training = norm is not None and norm.training
        kernel.forward(
            block.c_shape,
            *map(pointer, (x, weight, bias, gamma, beta, residual)),
            *map(pointer, (norm.running_mean, norm.running_var) if norm else (None, None)),
            ctypes.c_double(norm.momentum or 0 if norm else 0),
            ctypes.c_double(norm.eps if norm else 0),
            ctypes.c_int(training),
            *map(pointer, (convolved, moments, out)),
            ctypes.c_int(block.shape[0]),
        )
        ctx.save_for_backward(x, weight, gamma, convolved, moments, out)
        ctx.training, ctx.block = training, block
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, gamma, convolved, moments, out = ctx.saved_tensors
        of_x, _, of_bias, _, _, of_residual, *_ = ctx.needs_input_grad
        kernel, block = _library(x.dtype), ctx.block
        gradient = gradient.contiguous()
        # The gradient of the network's input images is the most expensive one, and not needed.
        dx = _bundles(kernel, x, block.shape) if of_x else None
        dw = torch.empty_like(weight)
        dbias = moments.new_empty(len(weight)) if of_bias else None
        dgamma, dbeta = (
            (torch.empty_like(gamma), torch.empty_like(gamma)) if gamma is not None else (None, None)
        )
        dresidual = torch.empty_like(convolved) if of_residual else None
        kernel.backward(
            block.c_shape,
            *map(pointer, (gradient, x, weight, gamma, convolved, moments, out)),
            ctypes.c_int(ctx.training),
            *map(pointer, (dx, dw, dbias, dgamma, dbeta, dresidual)),
            ctypes.c_int(block.shape[0]),
        )
        if dx is not None and block.images:
            dx = _unpacked(kernel, dx, block.shape)
        return dx, dw, dbias, dgamma, dbeta, dresidual, None, None


class _Unpack(torch.autograd.Function):
    """See `Bundles.images`."""

    @staticmethod
    def forward(ctx: Any, bundles: Tensor, shape: tuple[int, int, int, int]) -> Tensor:
        ctx.shape = shape
        return _unpacked(_library(bundles.dtype), bundles, shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        same = _block(ctx.shape, (ctx.shape[1], 1, 1, 0), False, False, None, False)
        return _packed(_library(gradient.dtype), gradient, same), None


def _bundles(kernel: Any, like: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Uninitialised bundles for images of ``shape``."""
    return like.new_empty(kernel.numbers(*shape))


def _packed(kernel: Any, images: Tensor, block: _Block) -> Tensor:
    images = images.contiguous()
    bundles = images.new_empty(kernel.packed_numbers(block.c_shape, len(images)))
    kernel.pack(block.c_shape, pointer(images), pointer(bundles), ctypes.c_int(len(images)))
    return bundles


def _unpacked(kernel: Any, bundles: Tensor, shape: tuple[int, int, int, int]) -> Tensor:
    images = bundles.new_empty(shape)
    kernel.unpack(pointer(bundles), pointer(images), *shape)
    return images
