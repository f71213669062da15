"""FedAvg on the straggler clock, with late models discarded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pfl.lazy import torch
from pfl.methods._clock import Clocked

if TYPE_CHECKING:
    from torch import Tensor

    from pfl.engine.server import Server


@dataclass(frozen=True)
class FedAvgSync(Clocked):
    """Size-weighted averaging of the models that arrive in the round in which they were sent.

    A straggler still receives and trains on its schedule. With ``schedule: text`` nothing of it ever counts,
    with ``code`` one model in d + 2 rounds does. Discarded models are no traffic.
    """

    paper = "LGA/PLGA, FedAvg (Sync) of Table 2"

    def arrivals(self, server: Server) -> Tensor:
        arrivals = super().arrivals(server)
        return arrivals[~torch.isin(arrivals, self.late(server))]
