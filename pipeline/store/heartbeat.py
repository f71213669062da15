"""Progress of running trials: each one writes its round next to its checkpoint, so that the sweep can show
it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pfl.run.trials import Trial
from pipeline.store.workspace import checkpoint_folder

if TYPE_CHECKING:
    from pfl.engine.simulation import OnRound

SECONDS_BETWEEN = 1.0  # minimum time between two reports of a worker


def heartbeat_writer(trials: Sequence[Trial]) -> OnRound:
    """A callback for the simulation of one stack, which begins now; it writes the current round about once
    per second.
    """
    file = _file(trials)
    last = float("-inf")

    def write(round: int) -> None:
        with suppress(OSError):  # nothing depends on it
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(str(round), encoding="ascii")

    def tell(round: int, *_: object) -> None:
        nonlocal last
        if time.monotonic() - last >= SECONDS_BETWEEN:
            last = time.monotonic()
            write(round)

    if reached(trials) is None:  # otherwise, it continues
        write(0)
    return tell


def reached(trials: Sequence[Trial]) -> int | None:
    """The last finished round of one stack's trials; None means that they have not begun."""
    try:
        return int(_file(trials).read_text(encoding="ascii"))
    except (OSError, ValueError):  # not there yet, or just being written
        return None


def _file(trials: Sequence[Trial]) -> Path:
    return checkpoint_folder(*trials) / "round"
