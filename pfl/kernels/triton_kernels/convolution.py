"""A convolution and its gradients.

It is a matrix product: rows are output pixels, columns are output channels, and the sum is over input
channels and taps. The inputs of a row are read in place, so that their matrix is never stored. The tiles of
such a product have at least 16 channels; for fewer, the narrow kernels sum plain products.
"""

# Triton's compiler reads annotations and default arguments by its own rules.
# mypy: ignore-errors
# ruff: noqa: N803, N806, PLR0912, RUF005

import triton
import triton.language as tl

from pfl.kernels.triton_kernels.pixels import offset_of, place_of, tap_of, under


@triton.jit(do_not_specialize=["pixels"])
def convolve(
    images,
    weights,
    bias,
    out,
    pixels,
    IN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    OUT: tl.constexpr,
    OUT_ROWS: tl.constexpr,
    OUT_COLUMNS: tl.constexpr,
    SIDE: tl.constexpr,
    STRIDE: tl.constexpr,
    PADDING: tl.constexpr,
    BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    R: tl.constexpr,
):
    """A tile of M output pixels and N output channels of one client."""
    client = tl.program_id(1).to(tl.int64)
    pixel = tl.program_id(0) * M + tl.arange(0, M)
    channel = tl.program_id(2) * N + tl.arange(0, N)
    image, row, column = place_of(pixel, OUT_ROWS, OUT_COLUMNS)
    images += client * (pixels // (OUT_ROWS * OUT_COLUMNS)) * (IN * ROWS * COLUMNS)
    weights += client * (OUT * IN * SIDE * SIDE)
    total = tl.zeros((M, N), tl.float32)
    for first in range(0, IN * SIDE * SIDE, R):
        r = first + tl.arange(0, R)
        source, down, right = tap_of(r, SIDE)
        y, x, inside = under(row, column, down, right, ROWS, COLUMNS, STRIDE, PADDING)
        inputs = tl.load(
            images + (image[:, None] * IN + source[None, :]) * (ROWS * COLUMNS) + y * COLUMNS + x,
            mask=inside & (source[None, :] < IN) & (pixel[:, None] < pixels),
            other=0,
        )
        factors = tl.load(
            weights + channel[None, :] * (IN * SIDE * SIDE) + r[:, None],
            mask=(source[:, None] < IN) & (channel[None, :] < OUT),
            other=0,
        )
        total = tl.dot(inputs, factors, total, input_precision=PRECISION)
    if BIAS:
        total += tl.load(bias + client * OUT + channel, mask=channel < OUT, other=0)[None, :]
    tl.store(
        out + client * pixels * OUT + offset_of(image, channel, row, column, OUT, OUT_ROWS, OUT_COLUMNS),
        total.to(out.dtype.element_ty),
        mask=(pixel[:, None] < pixels) & (channel[None, :] < OUT),
    )


@triton.jit(do_not_specialize=["pixels"])
def input_gradient(
    gradient,
    weights,
    out,
    pixels,
    images,
    IN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    OUT: tl.constexpr,
    OUT_ROWS: tl.constexpr,
    OUT_COLUMNS: tl.constexpr,
    SIDE: tl.constexpr,
    STRIDE: tl.constexpr,
    PADDING: tl.constexpr,
    PRECISION: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    R: tl.constexpr,
):
    """A tile of M pixels and N channels of the gradient of one client's images.

    ``IN``, ``ROWS`` and ``COLUMNS`` refer to the result's gradient, ``OUT`` and so on to the images'. With
    stride S, the rows and the columns of a tile's pixels have the same remainder modulo S: these pixels use
    the same taps, every S-th one.
    """
    SHORT: tl.constexpr = (SIDE + STRIDE - 1) // STRIDE  # taps along a side that a pixel uses
    OWN_ROWS: tl.constexpr = (OUT_ROWS + STRIDE - 1) // STRIDE  # rows with the same remainder
    OWN_COLUMNS: tl.constexpr = (OUT_COLUMNS + STRIDE - 1) // STRIDE
    client = tl.program_id(1).to(tl.int64)
    remainder = tl.program_id(2) % (STRIDE * STRIDE)
    pixel = tl.program_id(0) * M + tl.arange(0, M)
    channel = tl.program_id(2) // (STRIDE * STRIDE) * N + tl.arange(0, N)
    image, row, column = place_of(pixel, OWN_ROWS, OWN_COLUMNS)
    first_down = (remainder // STRIDE + PADDING) % STRIDE
    first_right = (remainder % STRIDE + PADDING) % STRIDE
    begin_y = row + (remainder // STRIDE + PADDING - first_down) // STRIDE
    begin_x = column + (remainder % STRIDE + PADDING - first_right) // STRIDE
    gradient += client * images * (IN * ROWS * COLUMNS)
    weights += client * (IN * OUT * SIDE * SIDE)
    total = tl.zeros((M, N), tl.float32)
    for first in range(0, IN * SHORT * SHORT, R):
        r = first + tl.arange(0, R)
        source, back, left = tap_of(r, SHORT)
        down = first_down + back * STRIDE
        right = first_right + left * STRIDE
        met = (source < IN) & (down < SIDE) & (right < SIDE)
        y = begin_y[:, None] - back[None, :]
        x = begin_x[:, None] - left[None, :]
        inside = (y >= 0) & (x >= 0) & (y < ROWS) & (x < COLUMNS) & met[None, :]
        inputs = tl.load(
            gradient + (image[:, None] * IN + source[None, :]) * (ROWS * COLUMNS) + y * COLUMNS + x,
            mask=inside & (pixel[:, None] < pixels),
            other=0,
        )
        factors = tl.load(
            weights
            + ((source[:, None] * OUT + channel[None, :]) * SIDE + down[:, None]) * SIDE
            + right[:, None],
            mask=met[:, None] & (channel[None, :] < OUT),
            other=0,
        )
        total = tl.dot(inputs, factors, total, input_precision=PRECISION)
    row = row * STRIDE + remainder // STRIDE
    column = column * STRIDE + remainder % STRIDE
    tl.store(
        out
        + client * images * (OUT * OUT_ROWS * OUT_COLUMNS)
        + offset_of(image, channel, row, column, OUT, OUT_ROWS, OUT_COLUMNS),
        total.to(out.dtype.element_ty),
        mask=((pixel < pixels) & (row < OUT_ROWS) & (column < OUT_COLUMNS))[:, None]
        & (channel[None, :] < OUT),
    )


@triton.jit
def _own_sums(parts, client, WEIGHTS: tl.constexpr, BIASES: tl.constexpr, BIAS: tl.constexpr):
    """Pointers to one client's sums of the weight and the bias gradient, in this program's part."""
    clients = tl.num_programs(1).to(tl.int64)
    parts += tl.program_id(2) * clients * (WEIGHTS + BIAS * BIASES)
    return parts + client * WEIGHTS, parts + clients * WEIGHTS + client * BIASES


@triton.jit(do_not_specialize=["pixels", "part_pixels"])
def weight_gradient(
    images,
    gradient,
    parts,
    pixels,
    part_pixels,
    IN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    OUT: tl.constexpr,
    OUT_ROWS: tl.constexpr,
    OUT_COLUMNS: tl.constexpr,
    SIDE: tl.constexpr,
    STRIDE: tl.constexpr,
    PADDING: tl.constexpr,
    BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    R: tl.constexpr,
):
    """A tile of N output channels and R taps of the weight gradient, over a part of one client's pixels.

    The caller adds up the parts (parts, ...) in a fixed order. Each consists of the weight gradient (clients,
    OUT, IN, SIDE, SIDE), followed, with a bias, by the bias gradient (clients, OUT).
    """
    TAPS: tl.constexpr = IN * SIDE * SIDE
    TILES: tl.constexpr = (TAPS + R - 1) // R
    client = tl.program_id(1).to(tl.int64)
    weights, biases = _own_sums(parts, client, OUT * TAPS, OUT, BIAS)
    channel = tl.program_id(0) // TILES * N + tl.arange(0, N)
    r = tl.program_id(0) % TILES * R + tl.arange(0, R)
    source, down, right = tap_of(r, SIDE)
    images += client * (pixels // (OUT_ROWS * OUT_COLUMNS)) * (IN * ROWS * COLUMNS)
    gradient += client * pixels * OUT
    total = tl.zeros((N, R), tl.float32)
    bias_total = tl.zeros((N,), tl.float32)
    begin = tl.program_id(2) * part_pixels
    last = tl.minimum(pixels, begin + part_pixels)
    for first in range(begin, last, M):
        pixel = first + tl.arange(0, M)
        image, row, column = place_of(pixel, OUT_ROWS, OUT_COLUMNS)
        received = tl.load(
            gradient
            + channel[:, None] * (OUT_ROWS * OUT_COLUMNS)
            + (image * (OUT * OUT_ROWS * OUT_COLUMNS) + row * OUT_COLUMNS + column)[None, :],
            mask=(channel[:, None] < OUT) & (pixel[None, :] < last),
            other=0,
        )
        y, x, inside = under(row, column, down, right, ROWS, COLUMNS, STRIDE, PADDING)
        inputs = tl.load(
            images + (image[:, None] * IN + source[None, :]) * (ROWS * COLUMNS) + y * COLUMNS + x,
            mask=inside & (source[None, :] < IN) & (pixel[:, None] < last),
            other=0,
        )
        total = tl.dot(received, inputs, total, input_precision=PRECISION)
        if BIAS:
            bias_total += tl.sum(received.to(tl.float32), 1)
    tl.store(
        weights + channel[:, None] * TAPS + r[None, :],
        total,
        mask=(channel[:, None] < OUT) & (r[None, :] < TAPS),
    )
    if BIAS and tl.program_id(0) % TILES == 0:
        tl.store(biases + channel, bias_total, mask=channel < OUT)


@triton.jit(do_not_specialize=["pixels"])
def narrow_convolve(
    images,
    weights,
    bias,
    out,
    pixels,
    IN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    OUT: tl.constexpr,
    OUT_ROWS: tl.constexpr,
    OUT_COLUMNS: tl.constexpr,
    SIDE: tl.constexpr,
    STRIDE: tl.constexpr,
    PADDING: tl.constexpr,
    BIAS: tl.constexpr,
    BACK: tl.constexpr,
    M: tl.constexpr,
    GROUPS: tl.constexpr,
    SHARES: tl.constexpr,
):
    """Like `convolve`, with plain products, for few channels: GROUPS * M pixels, all channels of one client.

    A thread keeps the sums of one pixel per group in registers. ``SHARES`` threads, a divisor of IN, share
    the input channels of a pixel. With ``BACK``, the images are the gradient of a result of stride 1, and the
    weights those of the forward pass, (IN, OUT, SIDE, SIDE); the output is the gradient of the images.
    """
    TAPS: tl.constexpr = SIDE * SIDE
    OWN: tl.constexpr = IN // SHARES
    client = tl.program_id(1).to(tl.int64)
    begin = tl.program_id(0) * (GROUPS * M)
    share = tl.arange(0, SHARES)[:, None] * OWN
    images += client * (pixels // (OUT_ROWS * OUT_COLUMNS)) * (IN * ROWS * COLUMNS)
    weights += client * (OUT * IN * TAPS)
    factors = weights + share * ((OUT if BACK else 1) * TAPS)
    corners = ()
    ys = ()
    xs = ()
    for group in tl.static_range(GROUPS):
        pixel = tl.minimum(begin + group * M + tl.arange(0, M), pixels - 1)
        image, row, column = place_of(pixel[None, :], OUT_ROWS, OUT_COLUMNS)
        ys = ys + (row * STRIDE - PADDING,)
        xs = xs + (column * STRIDE - PADDING,)
        corner = images + image * (IN * ROWS * COLUMNS) + ys[group] * COLUMNS + xs[group]
        corners = corners + (corner + share * (ROWS * COLUMNS),)
    totals = (tl.zeros((SHARES, M), tl.float32),) * (OUT * GROUPS)
    for tap in range(TAPS):
        down = tap // SIDE
        right = tap % SIDE
        for channel_in in tl.static_range(OWN):
            values = ()
            for group in tl.static_range(GROUPS):
                place = corners[group] + channel_in * (ROWS * COLUMNS) + down * COLUMNS + right
                if PADDING:
                    y = ys[group] + down
                    x = xs[group] + right
                    inside = (y >= 0) & (y < ROWS) & (x >= 0) & (x < COLUMNS)
                    values = values + (tl.load(place, mask=inside, other=0).to(tl.float32),)
                else:
                    values = values + (tl.load(place).to(tl.float32),)
            sums = ()
            for channel in tl.static_range(OUT):
                if BACK:
                    factor = tl.load(factors + (channel_in * OUT + channel) * TAPS + (TAPS - 1 - tap))
                else:
                    factor = tl.load(factors + (channel * IN + channel_in) * TAPS + tap)
                for group in tl.static_range(GROUPS):
                    sums = sums + (totals[channel * GROUPS + group] + values[group] * factor.to(tl.float32),)
            totals = sums
    out += client * pixels * OUT
    for group in tl.static_range(GROUPS):
        pixel = begin + group * M + tl.arange(0, M)
        image, row, column = place_of(pixel, OUT_ROWS, OUT_COLUMNS)
        place = out + image * (OUT * OUT_ROWS * OUT_COLUMNS) + row * OUT_COLUMNS + column
        for channel in tl.static_range(OUT):
            total = tl.sum(totals[channel * GROUPS + group], 0)
            if BIAS:
                total += tl.load(bias + client * OUT + channel)
            tl.store(
                place + channel * (OUT_ROWS * OUT_COLUMNS),
                total.to(out.dtype.element_ty),
                mask=pixel < pixels,
            )


@triton.jit(do_not_specialize=["pixels", "part_pixels"])
def narrow_weight_gradient(
    images,
    gradient,
    parts,
    pixels,
    part_pixels,
    IN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    OUT: tl.constexpr,
    OUT_ROWS: tl.constexpr,
    OUT_COLUMNS: tl.constexpr,
    SIDE: tl.constexpr,
    STRIDE: tl.constexpr,
    PADDING: tl.constexpr,
    BIAS: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
):
    """Like `weight_gradient`, for few channels: N output channels, a divisor of OUT, by one row of taps."""
    TAPS: tl.constexpr = IN * SIDE * SIDE
    PIXELS: tl.constexpr = OUT_ROWS * OUT_COLUMNS
    client = tl.program_id(1).to(tl.int64)
    weights, biases = _own_sums(parts, client, OUT * TAPS, OUT, BIAS)
    line = tl.program_id(0) // (OUT // N)  # row of taps, numbered over all channels
    channel = tl.program_id(0) % (OUT // N) * N
    source = line // SIDE
    down = line % SIDE
    images += client * (pixels // PIXELS) * (IN * ROWS * COLUMNS) + source * (ROWS * COLUMNS)
    gradient += client * pixels * OUT + channel * PIXELS
    totals = (tl.zeros((M,), tl.float32),) * (N * SIDE)
    bias_totals = (tl.zeros((M,), tl.float32),) * N
    begin = tl.program_id(2) * part_pixels
    last = tl.minimum(pixels, begin + part_pixels)
    for first in range(begin, last, M):
        pixel = first + tl.arange(0, M)
        real = pixel < last
        image, row, column = place_of(pixel, OUT_ROWS, OUT_COLUMNS)
        y = row * STRIDE - PADDING + down
        x = column * STRIDE - PADDING
        inside = real & (y >= 0) & (y < ROWS)
        values = ()
        for right in tl.static_range(SIDE):
            place = images + image * (IN * ROWS * COLUMNS) + y * COLUMNS + x + right
            valid = inside & (x + right >= 0) & (x + right < COLUMNS) if PADDING else real
            values = values + (tl.load(place, mask=valid, other=0).to(tl.float32),)
        sums = ()
        bias_sums = ()
        for c in tl.static_range(N):
            place = gradient + image * (OUT * PIXELS) + c * PIXELS + row * OUT_COLUMNS + column
            received = tl.load(place, mask=real, other=0).to(tl.float32)
            for right in tl.static_range(SIDE):
                sums = sums + (totals[c * SIDE + right] + received * values[right],)
            bias_sums = bias_sums + (bias_totals[c] + received,)
        totals = sums
        bias_totals = bias_sums
    for c in tl.static_range(N):
        for right in tl.static_range(SIDE):
            place = weights + (channel + c) * TAPS + line * SIDE + right
            tl.store(place, tl.sum(totals[c * SIDE + right], 0))
        if BIAS and line == 0:
            tl.store(biases + channel + c, tl.sum(bias_totals[c], 0))
