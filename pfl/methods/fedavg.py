"""FedAvg: one global model, the average of what the participants trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pfl.engine.method import Method
from pfl.engine.mixing import Mixing

if TYPE_CHECKING:
    from pfl.engine.server import Server


@dataclass(frozen=True)
class FedAvg(Method):
    """Size-weighted averaging of all groups; the global model is evaluated without fine-tuning."""

    paper = "McMahan et al., AISTATS 2017, Algorithm 1"

    def aggregate(self, server: Server) -> Mixing:
        return {"all": server.average()}
