"""Memory of this process: its peak, and whether it did not suffice."""

from __future__ import annotations

import re
import resource
from pathlib import Path

from pfl.lazy import torch

STATUS = Path("/proc/self/status")


def peak() -> int:
    """Largest resident memory so far, in bytes."""
    if STATUS.exists():
        # getrusage starts at what the parent process had resident
        (kilobytes,) = re.findall(r"VmHWM:\s+(\d+) kB", STATUS.read_text())
        return int(kilobytes) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def ran_out(error: BaseException) -> bool:
    """Whether ``error`` says that memory did not suffice, on a GPU or, in torch's words, on a CPU."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)
