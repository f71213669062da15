"""Input images, batch norm, pooling and the loss of stacked clients on a GPU."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pfl.kernels import gpu, sides_after

BLOCK = 4096  # values of a channel at a time in batch norm
POOLED = 512  # values at a time in pooling
LOGITS = 2048  # at a time in the cross-entropy
SCALED = 1024  # values of an image at a time


def scaled_images(
    images: Tensor, labels: Tensor, index: Tensor, scale: Tensor, shift: Tensor
) -> tuple[Tensor, Tensor]:
    """Images (..., C, H, W) selected from uint8 (n, C, H, W), times ``scale`` plus ``shift``; labels (...).

    Args:
        index: (...), indices in [0, n).
        scale, shift: (C, 1, 1), in the dtype of the result.
    """
    index = index.contiguous()
    shape = images.shape[1:]
    out = scale.new_empty((*index.shape, *shape))
    own = torch.empty_like(index)
    numbers, pixels = math.prod(shape), math.prod(shape[1:])
    gpu.kernels().scaled_images[index.numel(), -(-numbers // SCALED)](
        images, labels, index, scale, shift, out, own, numbers, pixels, SCALED, num_warps=4
    )
    return out, own


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
    """Batch norm in training: (B, C, ...) to the same shape and dtype; running statistics change in place.

    Args:
        real: (B,), 1 for a real image and 0 for padding; None if all are real.
    """
    y: Tensor
    y, _ = _BatchNorm.apply(x, real, weight, bias, running_mean, running_variance, momentum, epsilon)
    return y


def pooled_relu(x: Tensor, side: int, stride: int, padding: int) -> Tensor:
    """Max pooling of square windows, then ReLU: (B, C, H, W) to (B, C, height, width)."""
    y: Tensor
    y, _ = _PooledReLU.apply(x, side, stride, padding)
    return y


def cross_entropy(logits: Tensor, labels: Tensor, real: Tensor | None) -> Tensor:
    """The mean cross-entropy () of logits (B, classes), with ``real`` as in `batch_norm`."""
    loss: Tensor
    loss, _ = _CrossEntropy.apply(logits, labels, real)
    return loss


class _BatchNorm(gpu.Stacked):
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
        gpu.kernels().normalise[channels, clients](
            x, x if real is None else real, *own, out, moments, images * pixels, momentum, epsilon,
            0 if real is None else real.stride(0), *(each.stride(0) for each in own),
            channels, pixels, real is not None, BLOCK, num_warps=_warps(images * pixels),
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
    def backward(ctx: Any, gradient: Tensor, _: None) -> tuple[Tensor | None, ...]:
        x, weight, moments, *real = ctx.saved_tensors
        gradients = _BatchNormGradient.apply(gradient, x, real[0] if real else None, weight, moments)
        of_x, of_weight, of_bias = gradients
        return of_x, None, of_weight, of_bias, None, None, None, None


class _BatchNormGradient(gpu.Stacked):
    """Inputs: gradient of the result, images, which are real, weights, moments."""

    @staticmethod
    def on_stacks(
        gradient: Tensor, x: Tensor, real: Tensor | None, weight: Tensor, moments: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        gradient, x = gradient.contiguous(), x.contiguous()
        clients, images, channels = x.shape[:3]
        pixels = math.prod(x.shape[3:])
        of_x = torch.empty_like(x)
        of_weight, of_bias = (x.new_empty((clients, channels), dtype=torch.float32) for _ in range(2))
        gpu.kernels().normalise_gradient[channels, clients](
            gradient, x, x if real is None else real, weight, moments, of_x, of_weight, of_bias,
            images * pixels, 0 if real is None else real.stride(0), weight.stride(0),
            channels, pixels, real is not None, BLOCK, num_warps=_warps(images * pixels),
        )  # fmt: skip
        return of_x, of_weight, of_bias


def _warps(numbers: int) -> int:
    """Warps for batch norm of a channel of ``numbers`` values. Measured on an H100."""
    return 16 if numbers > 2 * BLOCK else 8


class _PooledReLU(gpu.Stacked):
    """Inputs: images, side and stride of the windows, padding. Also returns which pixels are chosen."""

    @staticmethod
    def on_stacks(x: Tensor, side: int, stride: int, padding: int) -> tuple[Tensor, Tensor]:
        x = x.contiguous()
        *planes, height, width = x.shape
        sides = sides_after((height, width), side, stride, padding)
        y = x.new_empty((*planes, *sides))
        taps = x.new_empty(y.shape, dtype=torch.int8)
        gpu.kernels().pool[-(-y.numel() // POOLED),](
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


class _PoolGradient(gpu.Stacked):
    """Inputs: gradient of the result, chosen pixels, shape of one client's images, the rest as above."""

    @staticmethod
    def on_stacks(
        gradient: Tensor, taps: Tensor, shape: torch.Size, side: int, stride: int, padding: int
    ) -> tuple[Tensor]:
        gradient, taps = gradient.contiguous(), taps.contiguous()
        of_x = gradient.new_empty((len(gradient), *shape))
        gpu.kernels().pool_gradient[-(-of_x.numel() // POOLED),](
            gradient, taps, of_x, of_x.numel(),
            *gradient.shape[-2:], *shape[-2:], side, stride, padding, POOLED, num_warps=4,
        )  # fmt: skip
        return (of_x,)


class _CrossEntropy(gpu.Stacked):
    """Inputs: logits, labels, which are real. Also returns the number of real ones."""

    @staticmethod
    def on_stacks(logits: Tensor, labels: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
        logits, labels = logits.contiguous(), labels.contiguous()
        clients, images, classes = logits.shape
        loss = logits.new_empty(clients)
        counts = logits.new_empty(clients, dtype=torch.float32)
        gpu.kernels().cross_entropy[clients,](
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


class _CrossEntropyGradient(gpu.Stacked):
    """Inputs: gradient of the loss, logits, labels, which are real, their number."""

    @staticmethod
    def on_stacks(
        gradient: Tensor, logits: Tensor, labels: Tensor, real: Tensor | None, counts: Tensor
    ) -> tuple[Tensor]:
        gradient, logits, labels = gradient.contiguous(), logits.contiguous(), labels.contiguous()
        clients, images, classes = logits.shape
        of_logits = torch.empty_like(logits)
        at_once, padded = _logits(classes)
        gpu.kernels().cross_entropy_gradient[-(-images // at_once), clients](
            gradient, logits, labels, logits if real is None else real, counts, of_logits,
            images, 0 if real is None else real.stride(0), classes, real is not None, at_once, padded,
        )  # fmt: skip
        return (of_logits,)


def _logits(classes: int) -> tuple[int, int]:
    """Images at a time in the cross-entropy, and the padded number of classes of a tile."""
    padded = 1 << (classes - 1).bit_length()
    return max(1, LOGITS // padded), padded
