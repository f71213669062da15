"""The hardware of a simulation: device, backend, threads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from threadpoolctl import threadpool_limits

from pfl.core import memory
from pfl.core.config import Execution, Precision
from pfl.core.cores import cores
from pfl.core.errors import InvalidInput
from pfl.engine import workers
from pfl.engine.graphs import captures_on
from pfl.engine.local_training import Backend
from pfl.engine.loop import LoopBackend
from pfl.engine.stacked import StackedBackend

COMPILED = 4096
"""Number of compiled operations that oneDNN caches; its default is 1,024."""


def keep_compiled() -> None:
    """Let oneDNN cache up to `COMPILED` operations, unless the user has set a number.

    It compiles one per shape, and clients' last minibatches and test sets have many sizes. With an
    evaluation in every round, a ResNet-8 in bfloat16 trains 6 % (five epochs) to 19 % (one epoch) faster.
    oneDNN reads the variable when it compiles its first operation.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(COMPILED))


@contextmanager
def threads(count: int) -> Iterator[None]:
    """A context in which torch and the other numerical libraries use ``count`` threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with threadpool_limits(count):
            yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def numerics(precision: Precision) -> Iterator[None]:
    """A context in which cuDNN is deterministic and float32 products have the given ``precision``.

    By default torch computes convolutions on a GPU in TensorFloat-32.
    """
    backends: Any = torch.backends
    products = "tf32" if precision == "tf32" else "ieee"
    wanted = [
        (backends.cudnn, "deterministic", True),
        (backends.cudnn, "benchmark", False),
        (backends.cudnn.conv, "fp32_precision", products),
        (backends.cudnn.rnn, "fp32_precision", products),
        (backends.cuda.matmul, "fp32_precision", products),
        (backends.mkldnn.conv, "fp32_precision", "ieee"),
        (backends.mkldnn.matmul, "fp32_precision", "ieee"),
    ]
    before = [(place, name, getattr(place, name)) for place, name, _ in wanted]
    try:
        for place, name, value in wanted:
            setattr(place, name, value)
        yield
    finally:
        for place, name, value in before:
            setattr(place, name, value)


def computes_in(precision: Precision, device: torch.device) -> bool:
    """Whether ``device`` has instructions for ``precision``, as in `pfl.core.config.Config`."""
    if precision == "fp32":
        return True
    if device.type == "cuda":
        with torch.cuda.device(device):
            # A GPU with bfloat16 also has TF32.
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    # oneDNN claims bfloat16 for AVX-512 of any kind, and emulates it where these instructions are missing.
    return precision == "bf16" and bool(torch.cpu._is_avx512_bf16_supported())


def check_precision(precision: Precision, device: torch.device) -> None:
    """Check that ``device`` has instructions for ``precision``.

    Raises:
        InvalidInput: it has none, so nothing would be faster.
    """
    if not computes_in(precision, device):
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "this CPU"
        raise InvalidInput("precision", precision, f"fp32, as {name} has no {precision} instructions")


def resolve_device(name: str) -> torch.device:
    """The torch device called ``name``, as in `pfl.core.config.Execution`.

    Raises:
        InvalidInput: the GPU does not exist.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InvalidInput("device", name, f"cpu; this machine has {torch.cuda.device_count()} CUDA devices")
    return device


def resolve_backend(name: str, device: torch.device) -> str:
    """``name`` if it is loop or stacked; for ``auto`` the faster one on ``device``."""
    if name == "auto":
        return "stacked" if device.type == "cuda" else "loop"
    return name


def backend_for(execution: Execution, device: torch.device) -> Backend:
    """The backend that ``execution`` names, with its workers."""
    if resolve_backend(execution.backend, device) == "stacked":
        return StackedBackend(captures_on(device))
    return LoopBackend(workers_for(execution, device))


def workers_for(execution: Execution, device: torch.device) -> int:
    """The number of processes that share the clients of a round; by default, cores divided by threads."""
    loops = resolve_backend(execution.backend, device) == "loop"
    if not loops or device.type != "cpu" or not workers.available():
        return 1
    return execution.workers or max(1, cores() // execution.threads)


def forget_peak(device: torch.device) -> None:
    """Reset `peak_memory`, because one process may run many trials."""
    memory.forget_peak()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> int:
    """Peak memory in bytes: the most allocated on a GPU, or the peak of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return memory.peak()
