"""Convolutions that are faster than torch's: stacked on a GPU, and small ones in bfloat16 on a CPU."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from pfl.kernels import gpu_layers
from pfl.models._layers import SingleClientMode

FEW = 16  # output pixels up to which a matrix product is faster, by 1.04 to 5 times


class Conv2d(nn.Conv2d, SingleClientMode):
    """A convolution of a square kernel, one stride and one padding, neither dilated nor grouped."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to (B, outputs, height, width)."""
        if self.single_client or not gpu_layers.usable(x):
            return super().forward(x)
        return gpu_layers.convolution(x, self.weight, self.bias, self.stride[0], int(self.padding[0]))


class ResNetConv2d(Conv2d):
    """A convolution of a ResNet: padded by half its side, without a bias.

    Attributes:
        by_tap: it is computed as a product of matrices, which reads the weights tap by tap. It is faster if
            they are stored so; the numbers are the same.
    """

    by_tap: bool = False

    def __init__(self, before: int, after: int, kernel: int, stride: int):
        super().__init__(before, after, kernel, stride, padding=kernel // 2, bias=False)
        nn.init.kaiming_normal_(self.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to (B, outputs, height, width)."""
        stride = self.stride[0]
        height, width = sides_after(x, stride)
        bf16_on_cpu = x.device.type == "cpu" and torch.is_autocast_enabled("cpu")
        if not (self.single_client and bf16_on_cpu and height * width <= FEW):
            return super().forward(x)
        self.by_tap = True
        convolved: Tensor = MatrixConvolution.apply(x.bfloat16(), self.weight, stride)
        return convolved


class MatrixConvolution(torch.autograd.Function):
    """The same convolution as a product of two matrices, in the precision of the images.

    Each row of the first matrix holds the pixels under the kernel at one position, tap by tap. Each row of
    the second holds the weights of one output channel in the same order. The weights' gradient is returned
    in their own precision.
    """

    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, stride: int) -> Tensor:
        outputs, channels, kernel, _ = weight.shape
        sides = sides_after(images, stride)
        padded = F.pad(images, (kernel // 2,) * 4).permute(0, 2, 3, 1).contiguous()
        image, row, column, channel = padded.stride()
        places = padded.as_strided(
            (len(images), *sides, kernel, kernel, channels),
            (image, stride * row, stride * column, row, column, channel),
        ).reshape(-1, kernel * kernel * channels)
        weights = weight.to(images.dtype).permute(0, 2, 3, 1).reshape(outputs, -1)
        ctx.save_for_backward(places, weights)
        ctx.images, ctx.padded, ctx.stride = images.shape, padded.shape, stride
        by_tap = weight.is_contiguous(memory_format=torch.channels_last)
        ctx.layout = torch.channels_last if by_tap else torch.contiguous_format
        ctx.kernel, ctx.weights_dtype = kernel, weight.dtype
        return (places @ weights.T).view(len(images), *sides, outputs).permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        places, weights = ctx.saved_tensors
        (_, channels, height, width), kernel, outputs = ctx.images, ctx.kernel, len(weights)
        rows = gradient.permute(0, 2, 3, 1)
        sides = rows.shape[1:3]
        rows = rows.reshape(-1, outputs)
        of_weights = (rows.T @ places).view(outputs, kernel, kernel, channels).permute(0, 3, 1, 2)
        of_taps = (rows @ weights).view(-1, *sides, kernel**2, channels).unbind(3)
        of_padded = gradient.new_zeros(ctx.padded)
        image, row, column, channel = of_padded.stride()
        strides = (image, ctx.stride * row, ctx.stride * column, channel)
        for tap, of_tap in enumerate(of_taps):
            down, right = divmod(tap, kernel)
            of_padded.as_strided(of_tap.shape, strides, down * row + right * column).add_(of_tap)
        edge = kernel // 2
        of_images = of_padded[:, edge : edge + height, edge : edge + width].permute(0, 3, 1, 2)
        return of_images, of_weights.to(ctx.weights_dtype, memory_format=ctx.layout), None


def sides_after(images: Tensor, stride: int) -> tuple[int, int]:
    """Height and width of the convolution's output for images (B, C, H, W)."""
    height, width = images.shape[2:]
    return (height - 1) // stride + 1, (width - 1) // stride + 1
