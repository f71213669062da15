"""Positions of pixels and taps from their flat indices over several images or channels."""

# Triton's compiler reads annotations and default arguments by its own rules.
# mypy: ignore-errors
# ruff: noqa: N803

import triton
import triton.language as tl


@triton.jit
def place_of(pixel, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Image, row and column of pixels that are numbered over all images."""
    return (pixel // (ROWS * COLUMNS)).to(tl.int64), pixel // COLUMNS % ROWS, pixel % COLUMNS


@triton.jit
def tap_of(r, SIDE: tl.constexpr):
    """Channel, row and column of taps that are numbered over all channels."""
    return r // (SIDE * SIDE), r // SIDE % SIDE, r % SIDE


@triton.jit
def under(
    row,
    column,
    down,
    right,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STRIDE: tl.constexpr,
    PADDING: tl.constexpr,
):
    """Row and column of the input under each tap of each output pixel, and whether it is in the image."""
    y = row[:, None] * STRIDE - PADDING + down[None, :]
    x = column[:, None] * STRIDE - PADDING + right[None, :]
    return y, x, (y >= 0) & (x >= 0) & (y < ROWS) & (x < COLUMNS)


@triton.jit
def offset_of(
    image,
    channel,
    row,
    column,
    CHANNELS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Offsets (pixels, channels) in one client's images (B, CHANNELS, ROWS, COLUMNS)."""
    place = image * (CHANNELS * ROWS * COLUMNS) + row * COLUMNS + column
    return place[:, None] + channel[None, :] * (ROWS * COLUMNS)
