"""Progress of long computations: a display in a terminal or notebook, occasional lines in a log file."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tqdm import tqdm

SECONDS = 30.0
"""Time between two lines in a log file, which keeps them all."""


def live() -> bool:
    """Whether the output is shown live, in a terminal or a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


def bar(what: str, unit: str, total: int | None, shown: bool, initial: int = 0) -> tqdm[None]:
    """A progress bar, which appears if the work takes more than a second.

    Args:
        unit: what is counted; "B" means bytes, shown as kB, MB and so on.
        total: number of units; None if unknown.
        initial: number of units already done.
    """
    from tqdm import tqdm

    return tqdm(
        desc=what,
        unit=unit,
        unit_scale=unit == "B",
        total=total,
        initial=initial,
        disable=not shown,
        delay=1.0,
        mininterval=0.1 if live() else SECONDS,
        miniters=1,  # updates are rare: only the interval limits them
    )
