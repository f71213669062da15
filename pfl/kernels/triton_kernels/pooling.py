"""Max pooling with ReLU, and its gradient."""

# Triton's compiler reads annotations and default arguments by its own rules.
# mypy: ignore-errors
# ruff: noqa: N803, N806, PLR0124

import triton
import triton.language as tl

from pfl.kernels.triton_kernels.pixels import place_of


@triton.jit(do_not_specialize=["numbers"])
def pool(
    images,
    out,
    taps,
    numbers,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    OUT_ROWS: tl.constexpr,
    OUT_COLUMNS: tl.constexpr,
    SIDE: tl.constexpr,
    STRIDE: tl.constexpr,
    PADDING: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Max pooling and ReLU: a block of the result's values, which are numbered over all planes.

    ``taps`` receives the position of each window's maximum, chosen like torch, or -1 where ReLU gives 0.
    """
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    plane, row, column = place_of(at, OUT_ROWS, OUT_COLUMNS)
    largest = tl.full((BLOCK,), float("-inf"), tl.float32)
    chosen = tl.zeros((BLOCK,), tl.int32)
    for tap in tl.static_range(SIDE * SIDE):
        y = row * STRIDE - PADDING + tap // SIDE
        x = column * STRIDE - PADDING + tap % SIDE
        inside = (at < numbers) & (y >= 0) & (x >= 0) & (y < ROWS) & (x < COLUMNS)
        place = images + plane * (ROWS * COLUMNS) + y * COLUMNS + x
        value = tl.load(place, mask=inside, other=float("-inf")).to(tl.float32)
        larger = (value > largest) | (value != value)  # or NaN
        largest = tl.where(larger, value, largest)
        chosen = tl.where(larger, tap, chosen)
    dead = largest <= 0
    tl.store(out + at, tl.where(dead, 0.0, largest).to(out.dtype.element_ty), mask=at < numbers)
    tl.store(taps + at, tl.where(dead, -1, chosen).to(tl.int8), mask=at < numbers)


@triton.jit(do_not_specialize=["numbers"])
def pool_gradient(
    gradient,
    taps,
    out,
    numbers,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    OUT_ROWS: tl.constexpr,
    OUT_COLUMNS: tl.constexpr,
    SIDE: tl.constexpr,
    STRIDE: tl.constexpr,
    PADDING: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A block of the gradient of the input of `pool`: each pixel sums over the windows in which it is chosen.

    ``ROWS`` and ``COLUMNS`` refer to the result's gradient, ``OUT_ROWS`` and ``OUT_COLUMNS`` to the images.
    """
    WINDOWS: tl.constexpr = (SIDE + STRIDE - 1) // STRIDE  # windows along a side that contain a pixel
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    plane, row, column = place_of(at, OUT_ROWS, OUT_COLUMNS)
    total = tl.zeros((BLOCK,), tl.float32)
    for window in tl.static_range(WINDOWS * WINDOWS):
        y = (row + PADDING) // STRIDE - window // WINDOWS
        x = (column + PADDING) // STRIDE - window % WINDOWS
        down = row + PADDING - y * STRIDE
        right = column + PADDING - x * STRIDE
        met = (y >= 0) & (x >= 0) & (y < ROWS) & (x < COLUMNS) & (down < SIDE) & (right < SIDE)
        place = plane * (ROWS * COLUMNS) + y * COLUMNS + x
        chosen = tl.load(taps + place, mask=met & (at < numbers), other=-1).to(tl.int32)
        received = tl.load(gradient + place, mask=met & (at < numbers), other=0).to(tl.float32)
        total += tl.where(chosen == down * SIDE + right, received, 0.0)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=at < numbers)
