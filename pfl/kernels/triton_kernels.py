"""Triton kernels of a network's layers and loss, for all clients of a stack at once.

Imported when first needed on a GPU (`pfl.kernels.gpu`), as Triton comes with torch for CUDA only. All tensors
are contiguous.
"""

# Triton's compiler reads annotations and default arguments by its own rules.
# mypy: ignore-errors
# ruff: noqa: N803, N806, PLR0124, PLR0912, RUF005

import triton
import triton.language as tl

# ---- positions of pixels and taps, from flat indices over several images or channels -------------------


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


# ---- a convolution and its gradients -------------------------------------------------------------------
#
# A matrix product: rows are output pixels, columns are output channels, and the sum is over input channels
# and taps. The inputs of a row are read in place, so that their matrix is never stored. The tiles of such a
# product have at least 16 channels; for fewer, the narrow kernels sum plain products.


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


# ---- batch norm in training, and its gradients ---------------------------------------------------------


@triton.jit
def _read(channel, at, numbers, CHANNELS: tl.constexpr, PIXELS: tl.constexpr):
    """Offsets and values of elements of one channel, which are numbered over all images."""
    offset = (at // PIXELS) * (CHANNELS * PIXELS) + at % PIXELS
    return offset, tl.load(channel + offset, mask=at < numbers, other=0).to(tl.float32)


@triton.jit
def normalise(
    images,
    real,
    weight,
    bias,
    running_mean,
    running_variance,
    out,
    moments,
    numbers,
    momentum,
    epsilon,
    r_client,
    w_client,
    b_client,
    m_client,
    v_client,
    CHANNELS: tl.constexpr,
    PIXELS: tl.constexpr,
    MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Batch norm of one channel of one client: images (clients, B, CHANNELS, PIXELS), B * PIXELS values.

    ``moments`` (clients, 2, CHANNELS) are the mean and the inverse of the standard deviation.
    """
    client = tl.program_id(1).to(tl.int64)
    channel = tl.program_id(0)
    begin = client * numbers * CHANNELS + channel * PIXELS
    images += begin
    out += begin
    lanes = tl.arange(0, BLOCK)
    sums = tl.zeros((BLOCK,), tl.float32)
    counts = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, numbers, BLOCK):
        at = first + lanes
        _, value = _read(images, at, numbers, CHANNELS, PIXELS)
        if MASKED:
            share = tl.load(real + client * r_client + at // PIXELS, mask=at < numbers, other=0)
            sums += value * share
            counts += share
        else:
            sums += value
    count = tl.sum(counts, 0) if MASKED else (numbers * 1.0)
    mean = tl.sum(sums, 0) / tl.maximum(count, 1.0)
    squares = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, numbers, BLOCK):
        at = first + lanes
        _, value = _read(images, at, numbers, CHANNELS, PIXELS)
        share = (at < numbers).to(tl.float32)
        if MASKED:
            share = tl.load(real + client * r_client + at // PIXELS, mask=at < numbers, other=0)
        squares += (value - mean) * (value - mean) * share
    variance = tl.sum(squares, 0) / tl.maximum(count, 1.0)
    deviation = 1 / tl.sqrt(variance + epsilon)
    scale = tl.load(weight + client * w_client + channel) * deviation
    shift = tl.load(bias + client * b_client + channel)
    for first in range(0, numbers, BLOCK):
        at = first + lanes
        offset, value = _read(images, at, numbers, CHANNELS, PIXELS)
        result = (value - mean) * scale + shift
        tl.store(out + offset, result.to(out.dtype.element_ty), mask=at < numbers)
    tl.store(moments + client * 2 * CHANNELS + channel, mean)
    tl.store(moments + (client * 2 + 1) * CHANNELS + channel, deviation)
    moved = momentum * tl.minimum(count, 1.0)  # without real images, the statistics are unchanged
    unbiased = variance * count / tl.maximum(count - 1, 1.0)
    before = tl.load(running_mean + client * m_client + channel)
    tl.store(running_mean + client * m_client + channel, before + moved * (mean - before))
    before = tl.load(running_variance + client * v_client + channel)
    tl.store(running_variance + client * v_client + channel, before + moved * (unbiased - before))


@triton.jit
def normalise_gradient(
    gradient,
    images,
    real,
    weight,
    moments,
    of_images,
    of_weight,
    of_bias,
    numbers,
    r_client,
    w_client,
    CHANNELS: tl.constexpr,
    PIXELS: tl.constexpr,
    MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Gradients of the inputs of `normalise`, for one channel of one client."""
    client = tl.program_id(1).to(tl.int64)
    channel = tl.program_id(0)
    begin = client * numbers * CHANNELS + channel * PIXELS
    gradient += begin
    images += begin
    of_images += begin
    place = client * CHANNELS + channel
    mean = tl.load(moments + client * 2 * CHANNELS + channel)
    deviation = tl.load(moments + (client * 2 + 1) * CHANNELS + channel)
    lanes = tl.arange(0, BLOCK)
    sums = tl.zeros((BLOCK,), tl.float32)
    products = tl.zeros((BLOCK,), tl.float32)
    counts = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, numbers, BLOCK):
        at = first + lanes
        offset, received = _read(gradient, at, numbers, CHANNELS, PIXELS)
        _, value = _read(images, at, numbers, CHANNELS, PIXELS)
        sums += received
        products += received * (value - mean)
        if MASKED:
            counts += tl.load(real + client * r_client + at // PIXELS, mask=at < numbers, other=0)
    count = tl.maximum(tl.sum(counts, 0), 1.0) if MASKED else (numbers * 1.0)
    total = tl.sum(sums, 0)
    product = tl.sum(products, 0) * deviation
    scale = tl.load(weight + client * w_client + channel) * deviation
    for first in range(0, numbers, BLOCK):
        at = first + lanes
        offset, received = _read(gradient, at, numbers, CHANNELS, PIXELS)
        _, value = _read(images, at, numbers, CHANNELS, PIXELS)
        through_moments = (total + (value - mean) * deviation * product) / count
        if MASKED:
            through_moments *= tl.load(real + client * r_client + at // PIXELS, mask=at < numbers, other=0)
        result = scale * (received - through_moments)
        tl.store(of_images + offset, result.to(of_images.dtype.element_ty), mask=at < numbers)
    tl.store(of_weight + place, product)
    tl.store(of_bias + place, total)


# ---- max pooling with ReLU, and its gradient -----------------------------------------------------------


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


# ---- the cross-entropy and its gradient ----------------------------------------------------------------


@triton.jit
def _shifted(logits, image, images, CLASSES: tl.constexpr, C: tl.constexpr):
    """One client's logits (M, C) minus the maximum of each image; -inf in the padding of the classes."""
    category = tl.arange(0, C)
    place = logits + image[:, None] * CLASSES + category[None, :]
    real = (image[:, None] < images) & (category[None, :] < CLASSES)
    value = tl.load(place, mask=real, other=0).to(tl.float32)
    value = tl.where(category[None, :] < CLASSES, value, float("-inf"))
    return value - tl.max(value, 1)[:, None]


@triton.jit(do_not_specialize=["images", "r_client"])
def cross_entropy(
    logits,
    labels,
    real,
    loss,
    counts,
    images,
    r_client,
    CLASSES: tl.constexpr,
    MASKED: tl.constexpr,
    M: tl.constexpr,
    C: tl.constexpr,
):
    """The mean cross-entropy of one client's logits (B, CLASSES), M at a time; ``counts`` of real images."""
    client = tl.program_id(0).to(tl.int64)
    logits += client * images * CLASSES
    labels += client * images
    sums = tl.zeros((M,), tl.float32)
    shares = tl.zeros((M,), tl.float32)
    for first in range(0, images, M):
        image = first + tl.arange(0, M)
        share = (image < images).to(tl.float32)
        if MASKED:
            share = tl.load(real + client * r_client + image, mask=image < images, other=0)
        shifted = _shifted(logits, image, images, CLASSES, C)
        label = tl.load(labels + image, mask=image < images, other=0)
        own = tl.sum(tl.where(tl.arange(0, C)[None, :] == label[:, None], shifted, 0.0), 1)
        sums += (tl.log(tl.sum(tl.exp(shifted), 1)) - own) * share
        shares += share
    count = tl.sum(shares, 0)
    tl.store(loss + client, (tl.sum(sums, 0) / count).to(loss.dtype.element_ty))
    tl.store(counts + client, count)


@triton.jit(do_not_specialize=["images", "r_client"])
def cross_entropy_gradient(
    gradient,
    logits,
    labels,
    real,
    counts,
    out,
    images,
    r_client,
    CLASSES: tl.constexpr,
    MASKED: tl.constexpr,
    M: tl.constexpr,
    C: tl.constexpr,
):
    """The gradient of one client's logits of M images, see `cross_entropy`."""
    client = tl.program_id(1).to(tl.int64)
    logits += client * images * CLASSES
    image = tl.program_id(0) * M + tl.arange(0, M)
    share = (image < images).to(tl.float32)
    if MASKED:
        share = tl.load(real + client * r_client + image, mask=image < images, other=0)
    factor = tl.load(gradient + client).to(tl.float32) * share / tl.load(counts + client)
    powers = tl.exp(_shifted(logits, image, images, CLASSES, C))
    label = tl.load(labels + client * images + image, mask=image < images, other=0)
    category = tl.arange(0, C)[None, :]
    change = powers / tl.sum(powers, 1)[:, None] - (category == label[:, None]).to(tl.float32)
    tl.store(
        out + client * images * CLASSES + image[:, None] * CLASSES + category,
        (change * factor[:, None]).to(out.dtype.element_ty),
        mask=(image[:, None] < images) & (category < CLASSES),
    )


# ---- images of a batch, selected from a data set -------------------------------------------------------


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
