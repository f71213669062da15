"""Layers with padded batches and keyed noise, so that clients can be stacked."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from pfl.core.errors import InvalidInput
from pfl.core.rng import hash32
from pfl.kernels import gpu, gpu_convolution, gpu_layers


class SingleClientMode(nn.Module):
    """A layer that is faster for the tensors of one client than for a stack; results agree up to rounding.

    Attributes:
        single_client: whether the tensors are one client's.
    """

    single_client: bool = False


class BatchNorm(_BatchNorm, SingleClientMode):
    """Batch norm (Ioffe and Szegedy, 2015) over the real rows of a padded batch.

    Differs from torch's in two ways: there is no batch counter, which could not be averaged, and ``rows`` can
    mark rows as padding. Without real rows, the running statistics are unchanged.

    Statistics have the dtype of the weights, and the result has the dtype of the images.

    Attributes:
        rows: (B,), 1 for a real row and 0 for padding, in the weights' dtype; `None` if every row is real.
        single_client: whether the images are one client's. torch then accepts images in a lower precision
            than the weights, which it does not under vmap.
    """

    rows: Tensor | None = None
    running_mean: Tensor
    running_var: Tensor
    momentum: float

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1):
        super().__init__(num_features, eps, momentum)
        self.num_batches_tracked = None

    def _load_from_state_dict(self, *args: Any) -> None:
        # Without a counter, the parent would assume the state of an older version and add one.
        nn.Module._load_from_state_dict(self, *args)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, ...) to the same shape. Under vmap, each client's running statistics change in place.

        Raises:
            InvalidInput: in training, a channel has a single value, whose variance is 0.
        """
        if self.training and x.numel() == self.num_features:
            accepted = "at least 2 for this network, whose batch norm sees one value per channel and sample"
            raise InvalidInput("batch_size", 1, accepted)
        statistics = (self.running_mean, self.running_var)
        if self.training and not self.single_client and gpu.usable(x):
            return gpu_layers.batch_norm(
                x, self.rows, self.weight, self.bias, *statistics, self.momentum, self.eps
            )
        if self.rows is None or not self.training:
            images = x if self.single_client else x.to(self.weight.dtype)
            return F.batch_norm(
                images, *statistics, self.weight, self.bias, self.training, self.momentum, self.eps
            ).to(x.dtype)
        inner = [1] * (x.dim() - 2)  # dimensions after the channels
        others = (0, *range(2, x.dim()))
        rows = self.rows.view(-1, 1, *inner)
        values = rows.sum() * math.prod(x.shape[2:])
        mean = (x * rows).sum(others, keepdim=True) / values.clamp(min=1)
        centred = x - mean
        variance = (centred.square() * rows).sum(others, keepdim=True) / values.clamp(min=1)
        with torch.no_grad():
            unbiased = variance * values / (values - 1).clamp(min=1)
            momentum = self.momentum * values.clamp(max=1)
            for running, batch in zip(statistics, (mean, unbiased), strict=True):
                running.add_(momentum * (batch.flatten() - running))
        weight, bias = self.weight.view(-1, *inner), self.bias.view(-1, *inner)
        return (centred * (variance + self.eps).rsqrt() * weight + bias).to(x.dtype)


class BatchNorm1d(BatchNorm, nn.BatchNorm1d):
    """Batch norm of features (B, C) or (B, C, L)."""


class BatchNorm2d(BatchNorm, nn.BatchNorm2d):
    """Batch norm of images (B, C, H, W)."""


class PooledReLU(SingleClientMode):
    """Max pooling of square windows, then ReLU: cheaper in this order, with the same result."""

    def __init__(self, side: int, stride: int, padding: int = 0):
        super().__init__()
        self.windows = (side, stride, padding)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to (B, C, height, width)."""
        if self.single_client or not gpu.usable(x):
            return F.relu(F.max_pool2d(x, *self.windows))
        return gpu_layers.pooled_relu(x, *self.windows)

    def extra_repr(self) -> str:
        return "side={}, stride={}, padding={}".format(*self.windows)


class Linear(nn.Linear, SingleClientMode):
    """A linear layer with a bias."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, d) to (B, outputs)."""
        if self.single_client or x.dim() != 2 or not gpu.usable(x):
            return super().forward(x)
        # A convolution of one-pixel images is a single kernel and does not copy the bias.
        pixels, weight = x[:, :, None, None], self.weight[:, :, None, None]
        return gpu_convolution.convolution(pixels, weight, self.bias, stride=1, padding=0).flatten(1)


def channels_last(x: Tensor) -> Tensor:
    """Images (B, C, H, W) with channels last in memory, which makes wide convolutions faster on a CPU."""
    return x.contiguous(memory_format=torch.channels_last) if x.device.type == "cpu" else x


class ChannelsLast(SingleClientMode):
    """`channels_last`, for a network whose convolutions are all wide."""

    def forward(self, x: Tensor) -> Tensor:
        return channels_last(x) if self.single_client else x


class Dropout(nn.Module):
    """Dropout (Srivastava et al., 2014) of features (B, d), with a mask that is determined by a key.

    The mask of a client is thus the same when stacked and when alone, on any device, in any precision and
    with any padding after its real rows.

    Attributes:
        key: int64 (), distinct for every client and step; None means that the mask is drawn from torch's
            random state.
    """

    key: Tensor | None = None

    def __init__(self, p: float):
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if self.key is None or not self.training:
            return F.dropout(x, self.p, self.training)
        position = torch.arange(x.numel(), device=x.device).view(x.shape)
        noise = hash32(hash32(position) ^ self.key)
        return x * (noise >= self.p * 2**32) / (1 - self.p)
