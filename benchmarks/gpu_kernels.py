"""Milliseconds of a convolution of stacked clients on a GPU: the basis of `pfl.kernels.gpu_convolution`.

``python -m benchmarks.gpu_kernels``. The convolution and its gradients of images and weights are timed by the
rule, in other ways and as vmap's grouped convolution, each alone as a CUDA graph. It ends after
``--minutes``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
import typer
from torch import Tensor

from benchmarks.workload import run, timed
from pfl.core.config import Precision
from pfl.core.errors import InvalidInput
from pfl.engine.device import numerics
from pfl.kernels import gpu_convolution
from pfl.kernels.gpu_convolution import Tile

LAYERS = {
    "LeNet-5, first": (3, 6, 5, 1, 0, 32),
    "LeNet-5, second": (6, 16, 5, 1, 0, 14),
    "LeNet-5, first linear": (400, 120, 1, 1, 0, 1),
    "LeNet-5, second linear": (120, 84, 1, 1, 0, 1),
    "ResNet-8, stem": (3, 64, 7, 2, 3, 32),
    "ResNet-8, first block": (64, 64, 3, 1, 1, 8),
    "ResNet-8, second block": (64, 128, 3, 2, 1, 8),
    "ResNet-8, third block": (256, 256, 3, 1, 1, 2),
}
"""Input channels, output channels, side of the kernel, stride, padding, side of the images."""

Way = dict[str, Any]
"""New values of names in `pfl.kernels.gpu_convolution`."""

IMAGES = 32
REPEATS = 10  # in a graph
MOST = 32  # channels that are tried without matrix products
SHOWN = 4  # number of the fastest ways


def main(
    clients: Annotated[int, typer.Option(help="Clients in the stack.")] = 40,
    precision: Annotated[Precision, typer.Option(help="Of the products.")] = "fp32",
    minutes: Annotated[float, typer.Option(help="Try no further way after this time.")] = 8.0,
) -> None:
    """Print milliseconds by layer, by the rule and in the fastest ways."""
    end = time.monotonic() + 60 * minutes
    if not torch.cuda.is_available():
        raise InvalidInput("device", "cpu", "a machine with a GPU")
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    products = {"fp32": ("ieee", "tf32x3"), "tf32": ("tf32",), "bf16": ("ieee",)}[precision]
    with numerics(precision):
        for name, layer in LAYERS.items():
            if time.monotonic() > end:
                print(f"{name}: not measured, as the time is up", flush=True)
                continue
            measure(name, layer, clients, dtype, products, end=end)


def measure(
    name: str,
    layer: tuple[int, int, int, int, int, int],
    clients: int,
    dtype: torch.dtype,
    products: tuple[str, ...],
    device: str = "cuda",
    end: float = math.inf,
) -> None:
    """Print the milliseconds of one of `LAYERS`, without the ways that are left at ``end`` (of
    `time.monotonic`); ``products`` as in `pfl.kernels.gpu_convolution.Tile`."""
    inputs, outputs, side, stride, padding, size = layer
    x = torch.randn(clients, IMAGES, inputs, size, size, device=device, dtype=dtype)
    weight = torch.randn(clients, outputs, inputs, side, side, device=device, dtype=dtype)
    convolve = partial(gpu_convolution._Convolution.on_stacks, x, weight, None, stride, padding)
    (y,) = convolve()
    to_images = partial(gpu_convolution._InputGradient.on_stacks, y, weight, x.shape[1:], stride, padding)
    to_weights = partial(gpu_convolution._WeightGradient.on_stacks, y, x, side, False, stride, padding)
    narrow = [
        {"THREADS": 128, "GROUPS": groups, "SHARES": shares} for groups in (2, 4, 8) for shares in (1, 2, 4)
    ]
    narrow_weights = [{"LANES": lanes, "SUMS": sums} for lanes in (32, 64, 128) for sums in (20, 40, 80)]
    linear = size == 1
    forward, backward = (
        [
            Tile(kind, rows, gpu_convolution._power(channels, columns), taps)
            for kind in products
            for rows in ((16, 32) if linear else (64, 128))
            for columns in ((16, 32, 128) if linear else (128,))
            for taps in (16, 32, 64)
        ]
        for channels in (outputs, inputs)
    )
    of_weights = [
        Tile(
            kind,
            rows,
            gpu_convolution._power(outputs, columns),
            gpu_convolution._power(inputs * side**2, taps),
        )
        for kind in products
        for rows in ((32,) if linear else (32, 64, 128))
        for columns in ((16, 32, 64) if linear else (64,))
        for taps in (32, 64, 128)
    ]
    show(f"{name}, convolution", convolve, [*with_tiles("_tile", forward), *without(narrow, outputs)], end)
    if inputs > 3:  # images need no gradient
        plain = without(narrow, inputs) if stride == 1 else []
        show(f"{name}, images' gradient", to_images, [*with_tiles("_tile", backward), *plain], end)
    plain = without(narrow_weights, outputs)
    show(f"{name}, weights' gradient", to_weights, [*with_tiles("_weight_tile", of_weights), *plain], end)
    print(f"{name}, groups of cuDNN: {grouped(x, weight, y, stride, padding, inputs > 3)}", flush=True)


def with_tiles(rule: str, tiles: list[Tile]) -> list[Way]:
    """Matrix products with each of ``tiles``."""
    return [{"_narrow": lambda *_: False, rule: lambda *_, tile=tile: tile} for tile in tiles]


def without(constants: list[dict[str, int]], outputs: int) -> list[Way]:
    """Ways without matrix products, if there are few ``outputs``."""
    return [{"_narrow": lambda *_: True, **each} for each in constants] if outputs <= MOST else []


def show(title: str, work: Callable[[], object], ways: list[Way], end: float) -> None:
    """Print the milliseconds of ``work`` by the rule, and in the fastest of the ways tried until ``end``."""
    spent: list[tuple[float, str]] = []
    for way in ways:
        if time.monotonic() > end:
            title += f" ({len(spent)} of {len(ways)} ways)"
            break
        with patch.multiple(gpu_convolution, **way):
            what = {k: v() if callable(v) else v for k, v in way.items() if k != "_narrow"}
            spent.append((milliseconds(work), ", ".join(f"{k} {v}" for k, v in what.items())))
    fastest = "; ".join(f"{each:.3f} ms {what}" for each, what in sorted(spent)[:SHOWN])
    print(f"{title}: {milliseconds(work):.3f} ms; {fastest}", flush=True)


def grouped(x: Tensor, weight: Tensor, y: Tensor, stride: int, padding: int, of_images: bool) -> str:
    """Milliseconds of the grouped convolution and of its gradients of images and weights."""
    images, results = (each.transpose(0, 1).flatten(1, 2).contiguous() for each in (x, y))
    weights, groups = weight.flatten(0, 1), len(x)
    strides, pads = [stride] * 2, [padding] * 2

    def backward(mask: list[bool]) -> object:
        return torch.ops.aten.convolution_backward(
            results, images, weights, None, strides, pads, [1, 1], False, [0, 0], groups, mask
        )

    spent = [milliseconds(lambda: F.conv2d(images, weights, None, stride, padding, 1, groups))]
    if of_images:
        spent.append(milliseconds(lambda: backward([True, False, False])))
    spent.append(milliseconds(lambda: backward([False, True, False])))
    return ", ".join(f"{each:.3f}" for each in spent)


def milliseconds(work: Callable[[], object]) -> float:
    """Milliseconds of the work alone, without the host's part: the best of several replays."""
    timed(work)  # compiles the kernels
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(REPEATS):
            work()
    return 1e3 * min(timed(graph.replay) for _ in range(4)) / REPEATS


if __name__ == "__main__":
    run(main)
