"""The cross-entropy and its gradient."""

# Triton's compiler reads annotations and default arguments by its own rules.
# mypy: ignore-errors
# ruff: noqa: N803

import triton
import triton.language as tl


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
