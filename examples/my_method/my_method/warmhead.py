"""WarmHead: one global model during a warm-up, then a personal head."""

from __future__ import annotations

from dataclasses import dataclass

from pfl import Method
from pfl.core.hyper import hyper


@dataclass(frozen=True)
class WarmHead(Method):
    """FedAvg during the warm-up, FedPer after it.

    Source: an example; no paper.
    State: none.
    Evaluated: each client's model after aggregation.
    Differs from the authors: does not apply.
    """

    warmup: float = hyper(0.3, "share of the rounds that are warm-up", low=0.0, high=1.0, search=(0.0, 0.8))

    def aggregate(self, server):
        warm = server.round <= self.warmup * server.rounds
        return {"all" if warm else "extractor": server.average()}
