"""Residual networks of basic blocks (He et al., 2016)."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pfl.kernels import sides_after
from pfl.kernels.conv_block import Bundles, Pooling, conv_block, usable
from pfl.models import Shape
from pfl.models._conv import FEW, ResNetConv2d
from pfl.models._layers import BatchNorm2d, Linear, PooledReLU, SingleClientMode, channels_last
from pfl.models._network import Network

MANY = 32  # batch size from which torch is faster with channels last


def resnet(
    shape: Shape, classes: int, blocks: tuple[int, ...], stem: Literal["imagenet", "cifar"] = "imagenet"
) -> Network:
    """A ResNet whose layers have ``blocks`` basic blocks each, of 64, 128, 256, ... channels.

    Args:
        stem: "imagenet", a 7x7 convolution and a pooling, both of stride 2; "cifar", a 3x3 convolution of
            stride 1, which keeps the size of small images.
    """
    small = stem == "cifar"
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=ResNetConv2d(shape[0], 64, 3, 1) if small else ResNetConv2d(shape[0], 64, 7, 2),
        bn1=BatchNorm2d(64),
        relu=nn.ReLU() if small else PooledReLU(3, 2, padding=1),
    )
    before = 64
    for i, count in enumerate(blocks):
        after = 64 * 2**i
        first = _BasicBlock(before, after, stride=1 if i == 0 else 2)
        layers[f"layer{i + 1}"] = nn.Sequential(
            first, *(_BasicBlock(after, after, stride=1) for _ in range(count - 1))
        )
        before = after
    layers["avgpool"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    return Network(ResidualLayers(layers), Linear(before, classes))


class ResidualLayers(nn.Sequential, SingleClientMode):
    """The layers of an extractor: stem, layers of basic blocks, average pooling."""

    def forward(self, x: Tensor) -> Tensor:
        parts: list[Any] = list(self)
        conv, norm, relu, *layers, average, flatten = parts
        # Without pooling, the feature maps exceed the L2 cache, and torch is faster.
        pools = isinstance(relu, PooledReLU)
        fused = self.single_client and pools and usable(x, self.modules(), "wide")
        if not fused:
            x = channels_last(x) if self.single_client and len(x) >= MANY else x
            for part in parts:
                x = part(x)
            return x
        y = conv_block(x, conv, norm, pooling=Pooling(3, 2, 1))
        blocks = [block for layer in layers for block in layer]
        while blocks and blocks[0].fuses(y):
            y = blocks.pop(0).fused(y)
        x = channels_last(y.images()) if blocks else y.images()
        for part in (*blocks, average, flatten):
            x = part(x)
        return x


class _BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, which is a 1x1 convolution where the shape changes."""

    def __init__(self, before: int, after: int, stride: int):
        super().__init__()
        self.conv1 = ResNetConv2d(before, after, 3, stride)
        self.bn1 = BatchNorm2d(after)
        self.conv2 = ResNetConv2d(after, after, 3, 1)
        self.bn2 = BatchNorm2d(after)
        self.downsample: nn.Module = nn.Identity()
        if before != after or stride != 1:
            self.downsample = nn.Sequential(ResNetConv2d(before, after, 1, stride), BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.downsample(x))

    def fuses(self, x: Bundles) -> bool:
        """Whether `fused` is faster: without tiles, small bfloat16 planes are faster as matrix products."""
        height, width = sides_after(x.shape[2:], 3, self.conv1.stride[0], 1)
        return x.tiled or x.data.dtype != torch.bfloat16 or height * width >= FEW

    def fused(self, x: Bundles) -> Bundles:
        """The same computation by `conv_block`."""
        shortcut: Any = self.downsample  # convolution and batch norm, or the identity
        kept = x if isinstance(shortcut, nn.Identity) else conv_block(x, *shortcut, relu=False)
        return conv_block(conv_block(x, self.conv1, self.bn1), self.conv2, self.bn2, residual=kept)
