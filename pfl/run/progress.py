"""Progress display of a simulation."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pfl.core.terminal import SECONDS, live

if TYPE_CHECKING:
    from pfl.engine.metrics import Evaluated
    from pfl.engine.simulation import OnRound


@contextmanager
def progress(rounds: int, title: str, moment: str) -> Iterator[OnRound]:
    """Yield an ``on_round`` for `pfl.run.simulate.simulate_configs` that draws a bar with the pooled accuracy
    at ``moment``, or prints a line at intervals in a log file."""
    if not live():
        yield _lines(title, moment)
        return
    from tqdm.auto import tqdm

    with tqdm(total=rounds, desc=title, unit="round") as bar:

        def on_round(round: int, _rounds: int, newest: Evaluated | None) -> None:
            bar.update(round - bar.n)
            if reached := _reached(newest, moment, round):
                bar.set_postfix(accuracy=reached, refresh=False)

        yield on_round


def _lines(title: str, moment: str) -> OnRound:
    last = time.monotonic()

    def on_round(round: int, rounds: int, newest: Evaluated | None) -> None:
        nonlocal last
        if time.monotonic() - last >= SECONDS:
            last = time.monotonic()
            reached = _reached(newest, moment, round)
            shown = f"{title}: round {round} of {rounds}{f', accuracy {reached}' if reached else ''}"
            print(shown, file=sys.stderr, flush=True)

    return on_round


def _reached(newest: Evaluated | None, moment: str, round: int) -> str:
    """The accuracy of the newest evaluation, with its round if it is an earlier one; empty if that moment was
    not evaluated."""
    if newest is None or moment not in newest.moments:
        return ""
    earlier = f" in round {newest.round}" if newest.round < round else ""
    return f"{newest.moments[moment].pooled:.2f} %{earlier}"
