"""What the terminal shows while a simulation runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pfl.engine.metrics import Evaluated
    from pfl.engine.simulation import OnRound


@contextmanager
def progress(rounds: int, title: str, moment: str) -> Iterator[OnRound]:
    """A bar with the pooled accuracy at ``moment``, as what `pfl.simulation.simulate` calls."""
    from tqdm import tqdm

    with tqdm(total=rounds, desc=title, unit="round", disable=None) as bar:

        def on_round(round: int, _rounds: int, newest: Evaluated | None) -> None:
            bar.update(round - bar.n)
            if newest:
                bar.set_postfix(accuracy=f"{newest.moments[moment].pooled:.2f} %", refresh=False)

        yield on_round
