"""FedAvg (async): FedAvg on the straggler clock, with stale models averaged like fresh ones."""

from __future__ import annotations

from dataclasses import dataclass

from pfl.core.hyper import hyper
from pfl.engine.method import Phase
from pfl.engine.types import Server
from pfl.methods._clock import Clocked


@dataclass(frozen=True)
class FedAvgAsync(Clocked):
    """Size-weighted averaging of all models that arrive in a round, however stale they are.

    Source: PLGA's paper, anonymous submission, FedAvg (Async) of Table 2. With ``repeat`` 2, it is what its
        code calls Per-FedAvg.
    State: only the models in flight.
    Evaluated: the global model ("post_aggregation"); the clients' last trained models ("post_local").
    Differs from the authors: the clock follows the paper's text (their code: ``schedule`` "code").
    """

    family = "asynchronous"

    repeat: int = hyper(1, "SGD steps on each batch", low=1)

    def phases(self, server: Server) -> tuple[Phase, ...]:
        return (Phase(steps=self.steps or None, repeat=self.repeat),)
