"""Layers and the loss of stacked clients on a GPU, in one kernel each.

Under `torch.vmap` a convolution of K clients becomes one of K groups, which cuDNN computes group by group in
float32: a step of 30 LeNets has 320 kernels then, and one of 40 ResNet-8 has 2,850. Other layers become
several kernels, each of which takes as long as it takes to start. The functions here look to vmap like any
other operation, and run `pfl.kernels.triton_kernels` on the whole stack. They can be differentiated once,
inside of vmap.
"""

from __future__ import annotations

import logging
import math
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

log = logging.getLogger(__name__)

DTYPES = (torch.float32, torch.bfloat16)
BLOCK = 4096  # numbers of a channel at once in batch norm
POOLED = 512  # numbers at once in pooling
LOGITS = 2048  # at once in the cross-entropy
PART = 512  # pixels, at least, whose part of a weights' gradient is one sum
PARTS = 32  # of them at most, as each takes the memory of the weights
# A convolution of few channels, measured on an H200 (``benchmarks.gpu_kernels``).
FEW = 8  # channels of its result
FEW_IN_GRADIENT = 16  # where it is the weights' gradient
WRITTEN_OUT = 512  # products of a pixel and tap at most, each an instruction
PIXELS = 512  # at once
LANES = 64  # pixels at once in its weights' gradient
SUMS = 40  # of that gradient at most at once, each in a register


def usable(x: Tensor) -> bool:
    """Whether the functions of this module work on clients like this one, with images or features ``x``."""
    return x.device.type == "cuda" and x.dtype in DTYPES and _kernels() is not None


@cache
def _kernels() -> Any:
    """The module of the kernels; None where Triton is missing or cannot compile."""

    def compiled() -> Any:
        from pfl.kernels import triton_kernels

        x = torch.ones(1, 1, 1, 1, 1, device="cuda")
        _convolved(triton_kernels, x, x, None, 1, 0)
        torch.cuda.synchronize()
        return triton_kernels

    try:
        with ThreadPoolExecutor(1) as thread:  # in which no vmap is active
            return thread.submit(compiled).result()
    except Exception as error:  # Triton's own kinds, the compiler's, the driver's
        reason = str(error).partition("\n")[0]
        log.warning("stacked clients are slower, as Triton does not work here: %s", reason)
        return None


def convolution(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int) -> Tensor:
    """As `torch.nn.functional.conv2d` of square kernels: images (B, C, H, W) to (B, outputs, ...)."""
    if torch.is_autocast_enabled("cuda"):
        dtype = torch.get_autocast_dtype("cuda")
        x, weight = x.to(dtype), weight.to(dtype)
    y: Tensor
    (y,) = _Convolution.apply(x, weight, bias, stride, padding)
    return y


def batch_norm(
    x: Tensor,
    real: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor,
    running_variance: Tensor,
    momentum: float,
    epsilon: float,
) -> Tensor:
    """Batch norm in training: (B, C, ...) to the same shape and dtype; running statistics move in place.

    Args:
        real: (B,), 1 for a real image and 0 for padding; `None` if every one is real.
    """
    y: Tensor
    y, _ = _BatchNorm.apply(x, real, weight, bias, running_mean, running_variance, momentum, epsilon)
    return y


def pooled_relu(x: Tensor, side: int, stride: int, padding: int) -> Tensor:
    """Max pooling of square windows, then ReLU: (B, C, H, W) to (B, C, height, width)."""
    y: Tensor
    y, _ = _PooledReLU.apply(x, side, stride, padding)
    return y


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """As `torch.nn.functional.linear` of features (B, d), which is three kernels under vmap."""
    if torch.is_autocast_enabled("cuda"):
        dtype = torch.get_autocast_dtype("cuda")
        x, weight, bias = x.to(dtype), weight.to(dtype), bias.to(dtype)
    y: Tensor
    (y,) = _Linear.apply(x, weight, bias)
    return y


def cross_entropy(logits: Tensor, labels: Tensor, real: Tensor | None) -> Tensor:
    """The mean cross-entropy () of logits (B, classes), with ``real`` as in `batch_norm`."""
    loss: Tensor
    loss, _ = _CrossEntropy.apply(logits, labels, real)
    return loss


class _Stacked(torch.autograd.Function):
    """A function of one client's tensors that is computed for many at once, or for one as a stack of one."""

    @staticmethod
    def on_stacks(*inputs: Any) -> tuple[Tensor, ...]:
        """The function, of tensors (K, *shape) and of other values; returns tensors (K, *shape)."""
        raise NotImplementedError

    @classmethod
    def forward(cls, *inputs: Any) -> tuple[Tensor, ...]:
        outputs = cls.on_stacks(*(v.unsqueeze(0) if isinstance(v, Tensor) else v for v in inputs))
        return tuple(output.squeeze(0) for output in outputs)

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, tuple[int, ...]]:
        def stacked(value: Any, dim: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            return value.expand(info.batch_size, *value.shape) if dim is None else value.movedim(dim, 0)

        outputs = cls.on_stacks(*map(stacked, inputs, in_dims))
        return outputs, (0,) * len(outputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass


class _Convolution(_Stacked):
    """Images, weights, bias or None, stride, padding."""

    @staticmethod
    def on_stacks(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int) -> tuple[Tensor]:
        return (_convolved(_kernels(), x, weight, bias, stride, padding),)

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


class _InputGradient(_Stacked):
    """Gradient of the result, weights, shape of one client's images, stride, padding."""

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
            _kernels().narrow_convolve[-(-pixels // PIXELS), clients](
                gradient, weight, weight, of_x, pixels,
                outputs, *sides, channels, height, width, side, 1, side - 1 - padding,
                False, True, PIXELS, num_warps=4,
            )  # fmt: skip
            return (of_x,)
        pixels = images * -(-height // stride) * -(-width // stride)
        tile = _tile(channels, gradient.dtype)
        grid = (-(-pixels // tile.rows), clients, -(-channels // tile.columns) * stride**2)
        _kernels().input_gradient[grid](
            gradient, weight, of_x, pixels, images,
            outputs, *sides, channels, height, width, side, stride, padding,
            *tile, num_warps=4,
        )  # fmt: skip
        return (of_x,)


class _WeightGradient(_Stacked):
    """Gradient of the result, images, side of the kernel, whether there is a bias, stride, padding."""

    @staticmethod
    def on_stacks(
        gradient: Tensor, x: Tensor, side: int, has_bias: bool, stride: int, padding: int
    ) -> tuple[Tensor, ...]:
        gradient, x = gradient.contiguous(), x.contiguous()
        clients, images, channels, height, width = x.shape
        outputs, *sides = gradient.shape[2:]
        pixels = images * math.prod(sides)
        part = max(PART, -(-pixels // PARTS))  # whatever the number of clients, so that it moves no number
        shape = (-(-pixels // part), clients, outputs)
        parts = x.new_empty((*shape, channels, side, side), dtype=torch.float32)
        bias_parts = x.new_empty(shape, dtype=torch.float32)
        tensors = (x, gradient, parts, bias_parts, pixels, part)
        geometry = (channels, height, width, outputs, *sides, side, stride, padding, has_bias)
        if _narrow(channels, outputs, FEW_IN_GRADIENT):
            together = _divisor(outputs, max(1, SUMS // side))
            grid = (channels * side * (outputs // together), clients, len(parts))
            _kernels().narrow_weight_gradient[grid](*tensors, *geometry, LANES, together, num_warps=1)
        else:
            tile = _weight_tile(outputs, channels * side**2, x.dtype)
            grid = (-(-channels * side**2 // tile.taps) * -(-outputs // tile.columns), clients, len(parts))
            _kernels().weight_gradient[grid](*tensors, *geometry, *tile, num_warps=4)
        of_weight = parts.sum(0).to(x.dtype)
        return (of_weight, bias_parts.sum(0)) if has_bias else (of_weight,)


class _BatchNorm(_Stacked):
    """See `batch_norm`."""

    @staticmethod
    def on_stacks(
        x: Tensor,
        real: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        running_mean: Tensor,
        running_variance: Tensor,
        momentum: float,
        epsilon: float,
    ) -> tuple[Tensor, Tensor]:
        x = x.contiguous()
        clients, images, channels = x.shape[:3]
        pixels = math.prod(x.shape[3:])
        out = torch.empty_like(x)
        moments = x.new_empty((clients, 2, channels), dtype=torch.float32)
        own = (weight, bias, running_mean, running_variance)
        _kernels().normalise[channels, clients](
            x, x if real is None else real, *own, out, moments, images * pixels, momentum, epsilon,
            0 if real is None else real.stride(0), *(each.stride(0) for each in own),
            channels, pixels, real is not None, BLOCK, num_warps=8,
        )  # fmt: skip
        return out, moments

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, real, weight, *_ = inputs
        _, moments = output
        ctx.mark_non_differentiable(moments)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, weight, moments, *(() if real is None else (real,)))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, moments, *real = ctx.saved_tensors
        gradients = _BatchNormGradient.apply(gradient, x, real[0] if real else None, weight, moments)
        of_x, of_weight, of_bias = gradients
        return of_x, None, of_weight, of_bias, None, None, None, None


class _BatchNormGradient(_Stacked):
    """Gradient of the result, images, which are real, weights, moments."""

    @staticmethod
    def on_stacks(
        gradient: Tensor, x: Tensor, real: Tensor | None, weight: Tensor, moments: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        gradient, x = gradient.contiguous(), x.contiguous()
        clients, images, channels = x.shape[:3]
        pixels = math.prod(x.shape[3:])
        of_x = torch.empty_like(x)
        of_weight, of_bias = (x.new_empty((clients, channels), dtype=torch.float32) for _ in range(2))
        _kernels().normalise_gradient[channels, clients](
            gradient, x, x if real is None else real, weight, moments, of_x, of_weight, of_bias,
            images * pixels, 0 if real is None else real.stride(0), weight.stride(0),
            channels, pixels, real is not None, BLOCK, num_warps=8,
        )  # fmt: skip
        return of_x, of_weight, of_bias


class _PooledReLU(_Stacked):
    """Images, side and stride of the windows, padding; returns which pixels are chosen, too."""

    @staticmethod
    def on_stacks(x: Tensor, side: int, stride: int, padding: int) -> tuple[Tensor, Tensor]:
        x = x.contiguous()
        *planes, height, width = x.shape
        sides = [(length + 2 * padding - side) // stride + 1 for length in (height, width)]
        y = x.new_empty((*planes, *sides))
        taps = x.new_empty(y.shape, dtype=torch.int8)
        _kernels().pool[-(-y.numel() // POOLED),](
            x, y, taps, y.numel(), height, width, *sides, side, stride, padding, POOLED, num_warps=4
        )
        return y, taps

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, *ctx.geometry = inputs
        _, taps = output
        ctx.mark_non_differentiable(taps)
        ctx.set_materialize_grads(False)
        ctx.shape = x.shape
        ctx.save_for_backward(taps)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: None) -> tuple[Tensor | None, ...]:
        (of_x,) = _PoolGradient.apply(gradient, *ctx.saved_tensors, ctx.shape, *ctx.geometry)
        return of_x, None, None, None


class _PoolGradient(_Stacked):
    """Gradient of the result, which pixels are chosen, shape of one client's images, the rest as above."""

    @staticmethod
    def on_stacks(
        gradient: Tensor, taps: Tensor, shape: torch.Size, side: int, stride: int, padding: int
    ) -> tuple[Tensor]:
        gradient, taps = gradient.contiguous(), taps.contiguous()
        of_x = gradient.new_empty((len(gradient), *shape))
        _kernels().pool_gradient[-(-of_x.numel() // POOLED),](
            gradient, taps, of_x, of_x.numel(),
            *gradient.shape[-2:], *shape[-2:], side, stride, padding, POOLED, num_warps=4,
        )  # fmt: skip
        return (of_x,)


class _Linear(_Stacked):
    """Features, weights, bias."""

    @staticmethod
    def on_stacks(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor]:
        return (torch.baddbmm(bias.unsqueeze(1), x, weight.mT),)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG004
        x, weight, _ = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        of_x = gradient @ weight if ctx.needs_input_grad[0] else None
        return of_x, gradient.mT @ x, gradient.sum(0)


class _CrossEntropy(_Stacked):
    """Logits, labels, which are real; returns the number of real ones, too."""

    @staticmethod
    def on_stacks(logits: Tensor, labels: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
        logits, labels = logits.contiguous(), labels.contiguous()
        clients, images, classes = logits.shape
        loss = logits.new_empty(clients)
        counts = logits.new_empty(clients, dtype=torch.float32)
        _kernels().cross_entropy[clients,](
            logits, labels, logits if real is None else real, loss, counts,
            images, 0 if real is None else real.stride(0), classes, real is not None, *_logits(classes),
        )  # fmt: skip
        return loss, counts

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        logits, labels, real = inputs
        _, counts = output
        ctx.mark_non_differentiable(counts)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(logits, labels, counts, *(() if real is None else (real,)))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: None) -> tuple[Tensor, None, None]:
        logits, labels, counts, *real = ctx.saved_tensors
        (of_logits,) = _CrossEntropyGradient.apply(
            gradient, logits, labels, real[0] if real else None, counts
        )
        return of_logits, None, None


class _CrossEntropyGradient(_Stacked):
    """Gradient of the loss, logits, labels, which are real, their number."""

    @staticmethod
    def on_stacks(
        gradient: Tensor, logits: Tensor, labels: Tensor, real: Tensor | None, counts: Tensor
    ) -> tuple[Tensor]:
        gradient, logits, labels = gradient.contiguous(), logits.contiguous(), labels.contiguous()
        clients, images, classes = logits.shape
        of_logits = torch.empty_like(logits)
        at_once, padded = _logits(classes)
        _kernels().cross_entropy_gradient[-(-images // at_once), clients](
            gradient, logits, labels, logits if real is None else real, counts, of_logits,
            images, 0 if real is None else real.stride(0), classes, real is not None, at_once, padded,
        )  # fmt: skip
        return (of_logits,)


def _logits(classes: int) -> tuple[int, int]:
    """Images at once in the cross-entropy, and the classes of a tile."""
    padded = 1 << (classes - 1).bit_length()
    return max(1, LOGITS // padded), padded


def _convolved(
    kernels: Any, x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int
) -> Tensor:
    """Images (K, B, C, H, W) by weights (K, outputs, C, side, side)."""
    x, weight = x.contiguous(), weight.contiguous()
    bias = None if bias is None else bias.contiguous()
    clients, images, channels, height, width = x.shape
    outputs, side = weight.shape[1], weight.shape[-1]
    sides = [(length + 2 * padding - side) // stride + 1 for length in (height, width)]
    y = x.new_empty((clients, images, outputs, *sides))
    pixels = images * math.prod(sides)
    tensors = (x, weight, weight if bias is None else bias, y, pixels)
    geometry = (channels, height, width, outputs, *sides, side, stride, padding, bias is not None)
    if _narrow(channels, outputs, FEW):
        blocks = -(-pixels // PIXELS)
        kernels.narrow_convolve[blocks, clients](*tensors, *geometry, False, PIXELS, num_warps=4)
    else:
        tile = _tile(outputs, x.dtype)
        grid = (-(-pixels // tile.rows), clients, -(-outputs // tile.columns))
        kernels.convolve[grid](*tensors, *geometry, *tile, num_warps=4)
    return y


def _narrow(inputs: int, outputs: int, few: int) -> bool:
    """Whether so few channels are faster without matrix products, of which most would be padding."""
    return outputs <= few and inputs * outputs <= WRITTEN_OUT


def _divisor(count: int, most: int) -> int:
    """The largest divisor of ``count`` that is at most ``most``."""
    return max(divisor for divisor in range(1, most + 1) if count % divisor == 0)


class Tile(NamedTuple):
    """How products are computed, and of how many pixels (rows), channels (columns) and taps at once."""

    products: str
    rows: int
    columns: int
    taps: int


def _tile(channels: int, dtype: torch.dtype) -> Tile:
    """For results of so many ``channels``. Measured on an H100 (``benchmarks.gpu_kernels``)."""
    columns = _power(channels, 128)
    if columns == 128:
        return Tile(_products(dtype, exact="ieee"), 64, columns, 32)
    products = _products(dtype, exact="tf32x3")
    return Tile(products, 128, columns, 16 if products == "tf32x3" else 32)


def _weight_tile(outputs: int, taps: int, dtype: torch.dtype) -> Tile:
    """For gradients of weights (outputs, taps). Measured likewise."""
    columns = _power(outputs, 64)
    if columns <= 32:
        return Tile(_products(dtype, exact="tf32x3"), 32, columns, _power(taps, 128))
    return Tile(_products(dtype, exact="ieee"), 64, columns, _power(taps, 64))


def _power(count: int, most: int) -> int:
    """The next power of two, at least 16, as the tensor cores' tiles, and at most ``most``."""
    return min(most, max(16, 1 << (count - 1).bit_length()))


def _products(dtype: torch.dtype, exact: str) -> str:
    """How Triton computes products: of float32 numbers as `pfl.engine.device.numerics` has set it.

    Args:
        exact: ieee, or tf32x3, which adds three products of numbers that are split in two. Both have the
            errors of float32: 6e-7 and 2e-7 for the weights' gradients of LeNet's first layer.
    """
    if dtype != torch.float32:
        return "ieee"  # has no effect
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else exact
