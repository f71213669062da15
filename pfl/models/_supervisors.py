"""FedSimSup's supervisors: second networks that stay with their client.

The paper names three kinds but not their architectures; those here are our choice.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from pfl.core.errors import InvalidInput, unknown_name
from pfl.models import Shape, is_image
from pfl.models._conv import Conv2d
from pfl.models._convnet import ConvNet
from pfl.models._network import Network

KINDS = ("L", "C", "T")
PATCH = 4  # height and width of a transformer's patches, in pixels
HEADS = 4  # attention heads


def supervisor(kind: str, shape: Shape, classes: int, network: Network, share: float = 1 / 6) -> Network:
    """A supervisor for ``network``: images (B, C, H, W) to logits (B, classes).

    Args:
        kind: "L", ``network`` narrowed; "C", a smaller CNN; "T", a large transformer.
        share: share of the parameters of ``network`` that an "L" has, at most 1/2.

    Raises:
        InvalidInput: the kind is unknown, the samples are not images, "L" cannot narrow ``network``, or "T"
            cannot divide the images into patches.
    """
    if not is_image(shape):
        raise InvalidInput("supervisor", kind, "none, because supervisors are networks for images")
    match kind:
        case "L":
            if not isinstance(network, ConvNet):
                accepted = "C or T with this model (L narrows only LeNets and similar networks)"
                raise InvalidInput("supervisor", kind, accepted)
            return ConvNet(network.plan.narrowed(share))
        case "C":
            return small_cnn(shape, classes)
        case "T":
            return transformer(shape, classes, width=128, depth=4, hidden=256)
    raise unknown_name("supervisor", kind, KINDS)


def small_cnn(shape: Shape, classes: int) -> Network:
    """Two 3x3 convolutions of stride 2 with 8 and 16 channels, average pooling and a linear layer."""
    extractor = nn.Sequential(
        Conv2d(shape[0], 8, 3, stride=2, padding=1),
        nn.ReLU(),
        Conv2d(8, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    return Network(extractor, nn.Linear(16, classes))


def transformer(shape: Shape, classes: int, width: int, depth: int, hidden: int) -> Network:
    """A vision transformer (Dosovitskiy et al., 2021) on square patches, with `HEADS` heads."""
    return Network(_Transformer(shape, width, depth, hidden), nn.Linear(width, classes))


class _Transformer(nn.Module):
    """Images (B, C, H, W) to the class token's features (B, width)."""

    def __init__(self, shape: Shape, width: int, depth: int, hidden: int):
        super().__init__()
        channels, *sides = shape
        if any(side % PATCH for side in sides):
            accepted = f"sides that are multiples of {PATCH} for a transformer"
            raise InvalidInput("images", "x".join(map(str, sides)), accepted)
        self.patches = Conv2d(channels, width, PATCH, stride=PATCH)
        tokens = 1 + math.prod(side // PATCH for side in sides)
        self.class_token = nn.Parameter(torch.empty(1, width))
        self.positions = nn.Parameter(torch.empty(tokens, width))
        self.blocks = nn.Sequential(*(_Block(width, hidden) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        for parameter in (self.class_token, self.positions):
            nn.init.trunc_normal_(parameter, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).mT
        token = self.class_token.expand(len(x), 1, -1)
        features: Tensor = self.norm(self.blocks(torch.cat([token, tokens], 1) + self.positions)[:, 0])
        return features


class _Block(nn.Module):
    """A pre-norm transformer layer on tokens (B, N, width)."""

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.attention = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        # Written out: vmap has no batching rule for fused attention on a CPU and would loop over clients.
        q, k, v = self.queries_keys_values(self.attention_norm(x)).unflatten(-1, (3, HEADS, -1)).unbind(-3)
        q, k, v = (each.transpose(-3, -2) for each in (q, k, v))
        weights = (q @ k.mT * k.shape[-1] ** -0.5).softmax(-1)
        x = x + self.attention((weights @ v).transpose(-3, -2).flatten(-2))
        out: Tensor = x + self.mlp(x)
        return out
