"""Peak memory of this process."""

from __future__ import annotations

import re
import resource
from pathlib import Path

STATUS = Path("/proc/self/status")


def peak() -> int:
    """Largest resident memory so far, in bytes."""
    if STATUS.exists():
        # getrusage starts at what the parent process had resident
        (kilobytes,) = re.findall(r"VmHWM:\s+(\d+) kB", STATUS.read_text())
        return int(kilobytes) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
