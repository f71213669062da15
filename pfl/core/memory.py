"""Memory of this process: peak, memory kept for reuse, and errors that report running out of it."""

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

KEPT = 32 << 20  # bytes; glibc takes no more as the size from which on memory is mapped by itself
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt


def peak() -> int:
    """Largest resident memory so far, in bytes, or since `forget_peak`."""
    if STATUS.exists():
        # getrusage starts at what the parent process had resident
        (kilobytes,) = re.findall(r"VmHWM:\s+(\d+) kB", STATUS.read_text())
        return int(kilobytes) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def release() -> None:
    """Free what nothing refers to any more, on a GPU also for other processes."""
    gc.collect()  # recorded steps refer to each other
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def forget_peak() -> None:
    """Free what nothing refers to any more, and count the `peak` from now on, where the kernel allows it."""
    gc.collect()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def keep_freed() -> None:
    """Let this process keep up to `KEPT` bytes that it has freed, where the C library is glibc.

    A training step frees what the next one allocates. By default pages of large tensors go back to the
    kernel in between, which takes 10 to 15 % of a step of cnn4 or ResNet-8.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, KEPT)
        mallopt(_MMAP_THRESHOLD, KEPT)


def ran_out(error: BaseException) -> bool:
    """Detect running out of memory, on a GPU or, by torch's message, on a CPU."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)
