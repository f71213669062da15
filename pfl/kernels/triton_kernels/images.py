"""Images of a batch, selected from a data set."""

# Triton's compiler reads annotations and default arguments by its own rules.
# mypy: ignore-errors
# ruff: noqa: N803

import triton
import triton.language as tl


@triton.jit
def scaled_images(
    images,
    labels,
    index,
    scale,
    shift,
    out,
    out_labels,
    NUMBERS: tl.constexpr,
    PIXELS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A block of one uint8 image, times its channel's ``scale`` plus ``shift``; and the image's label."""
    place = tl.program_id(0).to(tl.int64)
    chosen = tl.load(index + place)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    channel = at // PIXELS
    value = tl.load(images + chosen * NUMBERS + at, mask=at < NUMBERS, other=0).to(tl.float32)
    value *= tl.load(scale + channel, mask=at < NUMBERS, other=0)
    value += tl.load(shift + channel, mask=at < NUMBERS, other=0)
    tl.store(out + place * NUMBERS + at, value, mask=at < NUMBERS)
    if tl.program_id(1) == 0:
        tl.store(out_labels + place, tl.load(labels + chosen))
