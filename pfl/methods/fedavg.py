"""FedAvg: one global model, the average of what the participants trained."""

from __future__ import annotations

from dataclasses import dataclass

from pfl.engine.method import Method
from pfl.engine.mixing import Mixing
from pfl.engine.types import Server


@dataclass(frozen=True)
class FedAvg(Method):
    """Size-weighted averaging of all groups.

    Source: McMahan et al., AISTATS 2017, https://arxiv.org/abs/1602.05629, Algorithm 1.
    State: none.
    Evaluated: the global model, without fine-tuning.
    Differs from the authors: nothing.
    """

    family = "baseline"

    def aggregate(self, server: Server) -> Mixing:
        return {"all": server.average()}
