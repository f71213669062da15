"""Batch norm in training, and its gradients."""

# Triton's compiler reads annotations and default arguments by its own rules.
# mypy: ignore-errors
# ruff: noqa: N803

import triton
import triton.language as tl


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
