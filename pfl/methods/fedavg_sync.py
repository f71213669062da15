"""FedAvg (sync): FedAvg on the straggler clock, with late models discarded."""

from __future__ import annotations

from dataclasses import dataclass

from pfl.core.lazy import torch
from pfl.engine.types import Server, Tensor
from pfl.methods._clock import Clocked


@dataclass(frozen=True)
class FedAvgSync(Clocked):
    """Size-weighted averaging of the models that arrive in the round in which they were sent.

    A straggler still receives models and trains on its schedule. With ``schedule`` "text" none of its models
    is ever averaged; with "code" one in d + 2 rounds is. Discarded models are not counted as traffic.

    Source: PLGA's paper, anonymous submission, FedAvg (Sync) of Table 2.
    State: only the models in flight.
    Evaluated: the global model ("post_aggregation"); the clients' last trained models ("post_local").
    Differs from the authors: the clock follows the paper's text (their code: ``schedule`` "code").
    """

    family = "asynchronous"

    def arrivals(self, server: Server) -> Tensor:
        arrivals = super().arrivals(server)
        return arrivals[~torch.isin(arrivals, self.late(server))]
