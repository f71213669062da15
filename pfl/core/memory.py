"""Memory of this process: peak, reuse of freed memory, and out-of-memory errors."""

from __future__ import annotations

import ctypes
import gc
import re
import resource
import sys
from contextlib import suppress
from pathlib import Path

from pfl.core.lazy import torch

STATUS = Path("/proc/self/status")

KEPT = 32 << 20  # bytes; the largest M_MMAP_THRESHOLD that glibc accepts
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of mallopt


def peak() -> int:
    """Peak resident memory in bytes, since the start or the last `forget_peak`."""
    status = STATUS.read_text() if STATUS.exists() else ""
    if stated := re.search(r"VmHWM:\s+(\d+) kB", status):  # which gVisor lacks
        return int(stated[1]) * 1024  # getrusage would start at the parent process's resident memory
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def release() -> None:
    """Collect garbage, and return unused GPU memory to the device."""
    gc.collect()  # recorded steps form reference cycles
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def forget_peak() -> None:
    """Collect garbage, and reset the `peak` if the kernel allows it."""
    gc.collect()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def keep_freed() -> None:
    """Let this process keep up to `KEPT` bytes of freed memory, if the C library is glibc.

    Each training step frees what the next one allocates. By default, the pages of large tensors are returned
    to the kernel in between, which takes 10 to 15 % of a step of cnn4 or ResNet-8.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, KEPT)
        mallopt(_MMAP_THRESHOLD, KEPT)


def is_out_of_memory(error: BaseException) -> bool:
    """Detect running out of memory, on a GPU or, by torch's message, on a CPU."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)
