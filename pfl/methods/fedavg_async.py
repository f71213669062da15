"""FedAvg on the straggler clock, with stale models averaged like fresh ones."""

from __future__ import annotations

from dataclasses import dataclass

from pfl.methods._clock import Clocked


@dataclass(frozen=True)
class FedAvgAsync(Clocked):
    """Size-weighted averaging of all models that arrive in a round, whatever they were trained from."""

    paper = "LGA/PLGA, FedAvg (Async) of Table 2"
