"""A convolution of stacked clients on a GPU, also used for their linear layers."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pfl.kernels import gpu, sides_after

PART = 512  # minimum number of pixels in a partial sum of a weight gradient
PARTS = 32  # maximum number of partial sums, as each takes the memory of the weights
FEW_PIXELS = 64  # output pixels up to which tiles are small
# Convolutions of few channels; thresholds were measured on an H200, kernel sizes on an H100
# (``reports/engineering/speed/kernels-*.log``).
FEW = 8  # maximum number of output channels
FEW_IN_GRADIENT = 16  # the same for the weight gradient
MAX_UNROLLED = 512  # maximum number of products per pixel and tap, each an instruction
THREADS = 128  # per program, i.e. four warps
GROUPS = 4  # groups of pixels; a thread has one pixel of each
SHARES = 4  # maximum number of threads that share a pixel's input channels
LANES = 32  # pixels at a time in the weight gradient
SUMS = 40  # maximum number of sums of the weight gradient, each in a register


def convolution(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int) -> Tensor:
    """Like `torch.nn.functional.conv2d`, for square kernels: images (B, C, H, W) to (B, outputs, ...)."""
    y: Tensor
    (y,) = _Convolution.apply(*gpu.as_autocast(x, weight), bias, stride, padding)
    return y


class _Convolution(gpu.Stacked):
    """Inputs: images, weights, bias or None, stride, padding."""

    @staticmethod
    def on_stacks(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int) -> tuple[Tensor]:
        x, weight = x.contiguous(), weight.contiguous()
        bias = None if bias is None else bias.contiguous()
        clients, images, channels, height, width = x.shape
        outputs, side = weight.shape[1], weight.shape[-1]
        sides = sides_after((height, width), side, stride, padding)
        y = x.new_empty((clients, images, outputs, *sides))
        pixels = images * math.prod(sides)
        tensors = (x, weight, weight if bias is None else bias, y, pixels)
        geometry = (channels, height, width, outputs, *sides, side, stride, padding, bias is not None)
        if _narrow(channels, outputs, FEW):
            blocks, sizes = _narrow_blocks(pixels, channels)
            gpu.kernels().narrow_convolve[blocks, clients](*tensors, *geometry, False, *sizes, num_warps=4)
        else:
            tile = _tile(pixels, outputs, x.dtype)
            grid = (-(-pixels // tile.rows), clients, -(-outputs // tile.columns))
            gpu.kernels().convolve[grid](*tensors, *geometry, *tile, num_warps=4)
        return (y,)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG004
        x, weight, bias, *ctx.geometry = inputs
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_x = None
        if ctx.needs_input_grad[0]:  # the gradient of a network's images is the most expensive one
            (of_x,) = _InputGradient.apply(gradient, weight, x.shape, *ctx.geometry)
        of_weight, *of_bias = _WeightGradient.apply(
            gradient, x, weight.shape[-1], ctx.has_bias, *ctx.geometry
        )
        return of_x, of_weight, of_bias[0] if of_bias else None, None, None


class _InputGradient(gpu.Stacked):
    """Inputs: gradient of the result, weights, shape of one client's images, stride, padding."""

    @staticmethod
    def on_stacks(
        gradient: Tensor, weight: Tensor, shape: torch.Size, stride: int, padding: int
    ) -> tuple[Tensor]:
        gradient, weight = gradient.contiguous(), weight.contiguous()
        clients, images, outputs, *sides = gradient.shape
        channels, height, width = shape[1:]
        side = weight.shape[-1]
        of_x = gradient.new_empty((clients, *shape))
        if stride == 1 and _narrow(outputs, channels, FEW):
            pixels = images * height * width
            blocks, sizes = _narrow_blocks(pixels, outputs)
            gpu.kernels().narrow_convolve[blocks, clients](
                gradient, weight, weight, of_x, pixels,
                outputs, *sides, channels, height, width, side, 1, side - 1 - padding,
                False, True, *sizes, num_warps=4,
            )  # fmt: skip
            return (of_x,)
        pixels = images * -(-height // stride) * -(-width // stride)
        tile = _tile(pixels, channels, gradient.dtype)
        grid = (-(-pixels // tile.rows), clients, -(-channels // tile.columns) * stride**2)
        gpu.kernels().input_gradient[grid](
            gradient, weight, of_x, pixels, images,
            outputs, *sides, channels, height, width, side, stride, padding,
            *tile, num_warps=4,
        )  # fmt: skip
        return (of_x,)


class _WeightGradient(gpu.Stacked):
    """Inputs: gradient of the result, images, kernel size, whether there is a bias, stride, padding."""

    @staticmethod
    def on_stacks(
        gradient: Tensor, x: Tensor, side: int, has_bias: bool, stride: int, padding: int
    ) -> tuple[Tensor, ...]:
        gradient, x = gradient.contiguous(), x.contiguous()
        clients, images, channels, height, width = x.shape
        outputs, *sides = gradient.shape[2:]
        pixels = images * math.prod(sides)
        part = max(PART, -(-pixels // PARTS))  # independent of the number of clients, as are the results
        weights = clients * outputs * channels * side**2
        biases = clients * outputs if has_bias else 0
        parts = x.new_empty((-(-pixels // part), weights + biases), dtype=torch.float32)
        tensors = (x, gradient, parts, pixels, part)
        geometry = (channels, height, width, outputs, *sides, side, stride, padding, has_bias)
        if _narrow(channels, outputs, FEW_IN_GRADIENT):
            together = _divisor(outputs, max(1, SUMS // side))
            grid = (channels * side * (outputs // together), clients, len(parts))
            gpu.kernels().narrow_weight_gradient[grid](*tensors, *geometry, LANES, together, num_warps=1)
        else:
            tile = _weight_tile(pixels, outputs, channels * side**2, x.dtype)
            grid = (-(-channels * side**2 // tile.taps) * -(-outputs // tile.columns), clients, len(parts))
            gpu.kernels().weight_gradient[grid](*tensors, *geometry, *tile, num_warps=4)
        sums = parts[0] if len(parts) == 1 else parts.sum(0)
        of_weight = sums[:weights].view(clients, outputs, channels, side, side).to(x.dtype)
        return (of_weight, sums[weights:].view(clients, outputs)) if has_bias else (of_weight,)


def _narrow(inputs: int, outputs: int, few: int) -> bool:
    """Whether the channels are so few that plain products are faster than padded matrix products."""
    return outputs <= few and inputs * outputs <= MAX_UNROLLED


def _narrow_blocks(pixels: int, inputs: int) -> tuple[int, tuple[int, int, int]]:
    """The number of programs for ``pixels`` output pixels, and the sizes that `narrow_convolve` takes."""
    shares = math.gcd(inputs, SHARES)
    return -(-pixels // (THREADS // shares * GROUPS)), (THREADS // shares, GROUPS, shares)


def _divisor(count: int, most: int) -> int:
    """The largest divisor of ``count`` that is at most ``most``."""
    return max(divisor for divisor in range(1, most + 1) if count % divisor == 0)


class Tile(NamedTuple):
    """Precision of products, and their pixels (rows), channels (columns) and taps at a time."""

    products: str
    rows: int
    columns: int
    taps: int


def _tile(pixels: int, channels: int, dtype: torch.dtype) -> Tile:
    """The tile for results of this size. Measured on an H100 (``benchmarks.gpu_kernels``)."""
    products = _products(dtype, exact="tf32x3")
    if pixels <= FEW_PIXELS:  # a linear layer: small tiles keep the whole device busy
        return Tile(products, 16, _power(channels, 32), 64)
    columns = _power(channels, 128)
    if columns == 128:
        return Tile(_products(dtype, exact="ieee"), _power(pixels, 64), columns, 32)
    return Tile(products, _power(pixels, 128), columns, 16 if products == "tf32x3" and columns > 16 else 32)


def _weight_tile(pixels: int, outputs: int, taps: int, dtype: torch.dtype) -> Tile:
    """The tile for gradients of weights (outputs, taps) over ``pixels``. Measured in the same way."""
    if pixels <= FEW_PIXELS:
        return Tile(_products(dtype, exact="tf32x3"), 32, 16, _power(taps, 64))
    columns = _power(outputs, 64)
    if columns <= 32:
        return Tile(_products(dtype, exact="tf32x3"), 32, columns, _power(taps, 128))
    return Tile(_products(dtype, exact="ieee"), 64, columns, _power(taps, 64))


def _power(count: int, most: int) -> int:
    """The next power of two, at least 16, the size of the tensor cores' tiles, and at most ``most``."""
    return min(most, max(16, 1 << (count - 1).bit_length()))


def _products(dtype: torch.dtype, exact: str) -> str:
    """Triton's precision of products; for float32, as set by `pfl.engine.device.numerics`.

    Args:
        exact: ieee, or tf32x3, which adds three products of factors split in two. Both have the errors of
            float32: 6e-7 and 2e-7 for the weight gradients of LeNet's first layer.
    """
    if dtype != torch.float32:
        return "ieee"  # has no effect
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else exact
