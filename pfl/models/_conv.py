"""Convolutions that are faster than torch's: stacked on a GPU, and small ones in bfloat16 on a CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from pfl.kernels import gpu, gpu_convolution, im2col, sides_after
from pfl.models._layers import SingleClientMode

FEW = 16  # output pixels up to which a matrix product is faster, by 1.04 to 5 times


class Conv2d(nn.Conv2d, SingleClientMode):
    """A convolution with a square kernel, equal strides and paddings, no dilation and no groups."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to (B, outputs, height, width)."""
        if self.single_client or not gpu.usable(x):
            return super().forward(x)
        return gpu_convolution.convolution(x, self.weight, self.bias, self.stride[0], int(self.padding[0]))


class ResNetConv2d(Conv2d):
    """A convolution of a ResNet: padded by half the kernel size, without a bias.

    Attributes:
        by_tap: whether it is computed as a matrix product, which reads the weights tap by tap. Storing them
            so makes it faster, with the same results.
    """

    by_tap: bool = False

    def __init__(self, before: int, after: int, kernel: int, stride: int):
        super().__init__(before, after, kernel, stride, padding=kernel // 2, bias=False)
        nn.init.kaiming_normal_(self.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to (B, outputs, height, width)."""
        stride = self.stride[0]
        height, width = sides_after(x.shape[2:], self.kernel_size[0], stride, int(self.padding[0]))
        if not (self.single_client and height * width <= FEW and im2col.usable(x)):
            return super().forward(x)
        self.by_tap = True
        convolved: Tensor = MatrixConvolution.apply(x.bfloat16(), self.weight, stride)
        return convolved


class MatrixConvolution(torch.autograd.Function):
    """The same convolution as a product of two matrices, for bfloat16 images (B, C, H, W) on a CPU.

    The first is `im2col` of the images. Each row of the second holds the weights of one output channel, tap
    by tap. The gradient of the weights has their dtype.
    """

    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, stride: int) -> Tensor:
        outputs, _, kernel, _ = weight.shape
        pixels = im2col.im2col(images, kernel, stride)
        weights = weight.to(images.dtype).permute(0, 2, 3, 1).reshape(outputs, -1)
        ctx.save_for_backward(pixels, weights)
        ctx.images, ctx.weight, ctx.stride = images.shape, weight.shape, stride
        ctx.weights_dtype = weight.dtype
        by_tap = weight.is_contiguous(memory_format=torch.channels_last)
        ctx.layout = torch.channels_last if by_tap else torch.contiguous_format
        sides = sides_after(images.shape[2:], kernel, stride, kernel // 2)
        return (pixels @ weights.T).view(len(images), *sides, outputs).permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        pixels, weights = ctx.saved_tensors
        outputs, channels, kernel, _ = ctx.weight
        rows = gradient.permute(0, 2, 3, 1).reshape(-1, outputs)
        of_weights = (rows.T @ pixels).view(outputs, kernel, kernel, channels).permute(0, 3, 1, 2)
        of_images = im2col.col2im(rows @ weights, ctx.images, kernel, ctx.stride)
        return of_images, of_weights.to(ctx.weights_dtype, memory_format=ctx.layout), None
