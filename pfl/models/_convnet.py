"""Networks of a few convolutions and linear layers, such as the LeNets."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from torch import Tensor, nn

from pfl.core.errors import InvalidInput
from pfl.kernels.conv_block import Pooling, conv_block, linear_block, usable
from pfl.models import Shape
from pfl.models._conv import Conv2d
from pfl.models._layers import BatchNorm2d, Linear, PooledReLU, SingleClientMode, channels_last
from pfl.models._network import Network

WIDE = 16  # output channels beyond which torch is faster with channels last


@dataclass(frozen=True)
class Plan:
    """The widths of a `ConvNet`.

    Attributes:
        shape: shape of an image: channels, height, width.
        classes: width of the head.
        channels: output channels of the convolutions.
        hidden: widths of the linear layers between the convolutions and the head.
        kernel: kernel size of all convolutions, which have stride 1 and no padding.
        batch_norm: normalise between each convolution and its ReLU.
    """

    shape: Shape
    classes: int
    channels: tuple[int, ...]
    hidden: tuple[int, ...]
    kernel: int = 5
    batch_norm: bool = False

    @property
    def flat(self) -> int:
        """The number of features per image after the convolutions.

        Raises:
            InvalidInput: the image is too small for the convolutions.
        """
        _, height, width = self.shape
        least = 1
        for _ in self.channels:
            height, width = (height - self.kernel + 1) // 2, (width - self.kernel + 1) // 2
            least = 2 * least + self.kernel - 1
        if min(height, width) < 1:
            size = "x".join(map(str, self.shape[1:]))
            raise InvalidInput("images", size, f"at least {least}x{least} for this network")
        return self.channels[-1] * height * width

    @property
    def parameters(self) -> int:
        """The number of trainable scalars."""
        convolutions = pairwise((self.shape[0], *self.channels))
        linears = pairwise((self.flat, *self.hidden, self.classes))
        return (
            sum((self.kernel**2 * before + 1) * after for before, after in convolutions)
            + sum((before + 1) * after for before, after in linears)
            + 2 * sum(self.channels) * self.batch_norm
        )

    def narrowed(self, share: float) -> Plan:
        """The same layers with about ``share`` of the parameters.

        The convolutions keep 2 * share of their channels, rounded up: at 1/6, (6, 16) becomes (2, 6). The
        hidden layers shrink by a common factor, so that the number of parameters is as near as possible.
        """
        channels = tuple(math.ceil(2 * share * width) for width in self.channels)
        widest = self.hidden[0]
        plans = [
            replace(self, channels=channels, hidden=tuple(math.ceil(i * w / widest) for w in self.hidden))
            for i in range(1, widest + 1)
        ]
        return min(plans, key=lambda plan: abs(plan.parameters - share * self.parameters))


class Layers(nn.Sequential, SingleClientMode):
    """The layers of an extractor: first, blocks of convolution, optional batch norm and `PooledReLU`."""

    def __init__(self, layers: OrderedDict[str, nn.Module]):
        super().__init__(layers)
        self._blocks: list[list[Any]] = []
        self._rest: list[Any] = []
        for layer in layers.values():
            self._rest.append(layer)
            if isinstance(layer, PooledReLU):
                self._blocks.append(self._rest)
                self._rest = []
        self._hidden = [layer for layer in self._rest if isinstance(layer, nn.Linear)]
        self._wide = any(isinstance(layer, nn.Conv2d) and layer.out_channels > WIDE for layer in self)

    def forward(self, x: Tensor) -> Tensor:
        if not self.single_client:
            y: Tensor = super().forward(x)  # type: ignore[no-untyped-call]  # torch's is not annotated
            return y
        if usable(x, self, "wide" if self._wide else "narrow"):
            bundles: Any = x
            for conv, *norm, _ in self._blocks:
                bundles = conv_block(bundles, conv, norm[0] if norm else None, pooling=Pooling(2, 2))
            x = bundles.images()
            if bundles.tiled and self._hidden:
                hidden: Any = x.flatten(1)
                for linear in self._hidden:
                    hidden = linear_block(hidden, linear)
                features: Tensor = hidden.images().flatten(1)
                return features
        else:
            for block in self._blocks:
                if block[0].out_channels > WIDE:
                    x = channels_last(x)
                for layer in block:
                    x = layer(x)
        for layer in self._rest:
            x = layer(x)
        return x


class ConvNet(Network):
    """Blocks of convolution, 2x2 max pooling and ReLU, then linear layers with ReLU, then the head."""

    def __init__(self, plan: Plan):
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        for i, (before, after) in enumerate(pairwise((plan.shape[0], *plan.channels)), start=1):
            layers[f"conv{i}"] = Conv2d(before, after, plan.kernel)
            if plan.batch_norm:
                layers[f"bn{i}"] = BatchNorm2d(after)
            layers[f"pool{i}"] = PooledReLU(2, 2)
        layers["flatten"] = nn.Flatten()
        for i, (before, after) in enumerate(pairwise((plan.flat, *plan.hidden)), start=1):
            layers[f"fc{i}"] = Linear(before, after)
            layers[f"fc{i}_relu"] = nn.ReLU()
        super().__init__(Layers(layers), Linear(plan.hidden[-1], plan.classes))
        self.plan = plan
