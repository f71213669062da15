"""What a simulation is computed on: the device, the backend for it, the threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from threadpoolctl import threadpool_limits

from pfl import memory
from pfl.engine.graphs import captures_on
from pfl.engine.local import Backend
from pfl.engine.loop import LoopBackend
from pfl.engine.stacked import StackedBackend
from pfl.errors import InvalidInput


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Inside, torch and the numerical libraries beside it use ``count`` threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with threadpool_limits(count):
            yield
    finally:
        torch.set_num_threads(before)


def resolve_device(name: str) -> torch.device:
    """The torch device called ``name``, as in `pfl.config.Execution`.

    Raises:
        InvalidInput: a GPU is asked for and absent.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InvalidInput("device", name, f"cpu; this machine has {torch.cuda.device_count()} CUDA devices")
    return device


def resolve_backend(name: str, device: torch.device) -> str:
    """``name``, loop or stacked; in the place of ``auto`` the faster one on ``device``."""
    if name == "auto":
        return "stacked" if device.type == "cuda" else "loop"
    return name


def backend_for(name: str, device: torch.device) -> Backend:
    """The backend called ``name``, as in `pfl.config.Execution`."""
    stacked = resolve_backend(name, device) == "stacked"
    return StackedBackend(captures_on(device)) if stacked else LoopBackend()


def peak_memory(device: torch.device) -> int:
    """Bytes: of a GPU the most that were allocated, else of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return memory.peak()
