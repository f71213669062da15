"""A program that compiles every Triton kernel for GPUs that this machine need not have.

Its arguments are compute capabilities and types of the activations, as in ``90:bfloat16``.
"""

from __future__ import annotations

import sys
from itertools import product
from types import SimpleNamespace
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from pfl.kernels import gpu, gpu_convolution, gpu_layers, triton_kernels

POINTERS = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.uint8: "*u8",
    torch.int8: "*i8",
    torch.int64: "*i64",
}
WARP = 32


class Launched:
    """Takes the place of a kernel and keeps what it is launched with."""

    def __init__(self, kernel: Any, launches: list[Any]):
        self.kernel = kernel
        self.launches = launches

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *arguments, **options: self.launches.append((self.kernel, arguments, options))


def launches(dtype: torch.dtype) -> list[Any]:
    """What layers of few and of many channels launch, with a bias and padded batches and without."""
    calls: list[Any] = []
    own = {
        name: value for name, value in vars(triton_kernels).items() if isinstance(value, triton.JITFunction)
    }
    kernels = SimpleNamespace(**{name: Launched(kernel, calls) for name, kernel in own.items()})
    gpu.kernels = lambda: kernels  # type: ignore[assignment]
    images, labels = torch.zeros(3, 3, 8, 8, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64)
    gpu_layers.scaled_images(images, labels, labels, *torch.rand(2, 3, 1, 1))
    layers = ((3, 6, 5, 1, 0), (64, 128, 3, 2, 1))
    for (channels, outputs, side, stride, padding), with_all in product(layers, (True, False)):
        x = torch.rand(2, 4, channels, 8, 8, dtype=dtype)
        weight = torch.rand(2, outputs, channels, side, side, dtype=dtype)
        own = torch.rand(2, outputs)
        (y,) = gpu_convolution._Convolution.on_stacks(x, weight, own if with_all else None, stride, padding)
        gpu_convolution._InputGradient.on_stacks(y, weight, x.shape[1:], stride, padding)
        gpu_convolution._WeightGradient.on_stacks(y, x, side, with_all, stride, padding)
        real = torch.ones(2, 4) if with_all else None
        _, moments = gpu_layers._BatchNorm.on_stacks(y, real, own, own, own, own, 0.1, 1e-5)
        gpu_layers._BatchNormGradient.on_stacks(y, y, real, own, moments)
        pooled, taps = gpu_layers._PooledReLU.on_stacks(y, side, stride, padding)
        gpu_layers._PoolGradient.on_stacks(pooled, taps, y.shape[1:], side, stride, padding)
        logits, labels = y.flatten(2), torch.zeros(2, 4, dtype=torch.int64)
        loss, counts = gpu_layers._CrossEntropy.on_stacks(logits, labels, real)
        gpu_layers._CrossEntropyGradient.on_stacks(loss, logits, labels, real, counts)
    return calls


def compiled(kernel: Any, arguments: tuple[Any, ...], options: dict[str, Any], capability: int) -> None:
    signature, constants = {}, {}
    for place, (parameter, value) in enumerate(zip(kernel.params, arguments, strict=True)):
        if parameter.is_constexpr:
            kind = "constexpr"
            constants[(place,)] = value
        elif isinstance(value, torch.Tensor):
            kind = POINTERS[value.dtype]
        else:
            kind = "fp32" if isinstance(value, float) else "i32"
        signature[parameter.name] = kind
    source = ASTSource(kernel, signature, constants)
    triton.compile(source, target=GPUTarget("cuda", capability, WARP), options=options)


if __name__ == "__main__":
    for target in sys.argv[1:]:
        capability, _, dtype = target.partition(":")
        for kernel, arguments, options in launches(getattr(torch, dtype)):
            compiled(kernel, arguments, options, int(capability))
            print(target, kernel.__name__)
