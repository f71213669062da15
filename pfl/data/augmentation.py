"""Random flips, rotations and crops of training images, as in FedCAC's code.

The order of the steps and the padding values are those of Fling, https://github.com/FLAIR-Community/Fling
(fling/dataset/cifar100.py and fling/utils/data_utils/data_transform.py): flip, rotate, scale, crop. Rotation
therefore pads with black. Cropping pads the scaled image with 0, the mean colour of normalised images.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pfl.core.rng import hash32

PADDING = 4  # pixels added on each side before an image is cropped to its size
DEGREES = 15  # maximum angle of a rotation, in either direction


@dataclass(frozen=True)
class Moves:
    """Random augmentation of each image in a batch; None means that a step is omitted.

    Attributes:
        flip: bool (..., B), whether the image is flipped horizontally.
        angle: float64 (..., B), counter-clockwise rotation about the centre, in radians.
        crop: int64 (..., B, 2), shift of the window down and right, in pixels from -4 to 4.
    """

    flip: Tensor | None
    angle: Tensor | None
    crop: Tensor | None


def draw(augmentation: str, key: Tensor, count: int) -> Moves:
    """Draw the moves of ``count`` images from a key, independently of device and padding of the batch.

    Args:
        augmentation: names of the steps, e.g. "crop_flip_rotate".
        key: int64 (...,), distinct for every client, step and batch.
    """
    steps = augmentation.split("_")
    position = torch.arange(4 * count, device=key.device).view(count, 4)
    uniform = hash32(hash32(position) ^ key[..., None, None]).double() / 2**32  # (..., B, 4)
    window = 2 * PADDING + 1
    return Moves(
        flip=uniform[..., 0] < 0.5 if "flip" in steps else None,
        angle=(2 * uniform[..., 1] - 1) * math.radians(DEGREES) if "rotate" in steps else None,
        crop=(uniform[..., 2:] * window).long() - PADDING if "crop" in steps else None,
    )


def augmented(images: Tensor, moves: Moves, scaled: Callable[[Tensor], Tensor]) -> Tensor:
    """Augment and scale uint8 images (..., B, C, H, W).

    Every step copies pixels from other positions (a rotation from the nearest), so all steps together are one
    gather operation.
    """
    height, width = images.shape[-2:]
    y = torch.arange(height, device=images.device).view(-1, 1)
    x = torch.arange(width, device=images.device)
    padded = black = None
    if moves.crop is not None:
        y, x = (
            v + moves.crop[..., i, None, None] for i, v in enumerate((y, x))
        )  # (..., B, H, 1), (..., B, 1, W)
        padded = _outside(y, x, height, width)
    if moves.angle is not None:
        cos, sin = moves.angle.cos()[..., None, None], moves.angle.sin()[..., None, None]
        down, right = y - (height - 1) / 2, x - (width - 1) / 2
        y = (cos * down + sin * right + height / 2).floor().long()
        x = (cos * right - sin * down + width / 2).floor().long()
        black = _outside(y, x, height, width)
    if moves.flip is not None:
        x = torch.where(moves.flip[..., None, None], width - 1 - x, x)
    source = (y.clamp(0, height - 1) * width + x.clamp(0, width - 1)).unsqueeze(-3)  # (..., B, 1, H, W)
    moved = images.flatten(-2).gather(-1, source.expand(images.shape).flatten(-2)).view(images.shape)
    if black is not None:
        moved.masked_fill_(black.unsqueeze(-3), 0)
    moved = scaled(moved)
    return moved if padded is None else moved.masked_fill_(padded.unsqueeze(-3), 0)


def _outside(y: Tensor, x: Tensor, height: int, width: int) -> Tensor:
    """Mask (..., H, W) of the positions outside the image."""
    return (y < 0) | (y >= height) | (x < 0) | (x >= width)
