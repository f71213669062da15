"""The number of cores that this process may use."""

from __future__ import annotations

import os

from pfl.core.errors import InvalidInput


def cores() -> int:
    """Number of CPU cores, or fewer if a container, taskset or LOKY_MAX_CPU_COUNT sets a limit.

    Raises:
        InvalidInput: LOKY_MAX_CPU_COUNT is not an integer.
    """
    from joblib import cpu_count

    try:
        return int(cpu_count())
    except ValueError:
        limit = os.environ.get("LOKY_MAX_CPU_COUNT", "")
        raise InvalidInput("LOKY_MAX_CPU_COUNT", limit, "an integer, the number of cores to use") from None
