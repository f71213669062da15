"""FedAvg on the straggler clock, with stale models averaged like fresh ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pfl.engine.hyper import hyper
from pfl.engine.method import Phase
from pfl.methods._clock import Clocked

if TYPE_CHECKING:
    from pfl.engine.server import Server


@dataclass(frozen=True)
class FedAvgAsync(Clocked):
    """Size-weighted averaging of all models that arrive in a round, whatever they were trained from.

    With ``repeat: 2`` it is what the code of LGA and PLGA calls Per-FedAvg.
    """

    paper = "LGA/PLGA, FedAvg (Async) and Per-FedAvg of Table 2"

    repeat: int = hyper(1, "SGD steps on each batch", low=1)

    def phases(self, server: Server) -> tuple[Phase, ...]:
        return (Phase(steps=self.steps or None, repeat=self.repeat),)
