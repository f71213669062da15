"""FedUpdate: FedAvg, tested after a few local steps from the average."""

from __future__ import annotations

from dataclasses import dataclass

from pfl.core.hyper import hyper
from pfl.engine.method import Method, Phase
from pfl.engine.mixing import Mixing
from pfl.engine.types import Server


@dataclass(frozen=True)
class FedUpdate(Method):
    """FedAvg with uniform weights; before the evaluation every client takes some steps from the average.

    With ``persist`` the next local training starts from the result of these steps, as in the code of SPFL. A
    participant then takes the steps on batches of that round; an evaluation draws separate batches.

    Source: Jiang et al., 2019, https://arxiv.org/abs/1909.12488, in the form of SPFL's baseline.
    State: none.
    Evaluated: after the steps ("adapted", the headline).
    Differs from the authors: no second training stage with Reptile, as in SPFL; plain SGD.
    """

    family = "meta-learning"
    headline = "adapted"

    steps: int = hyper(1, "steps before the evaluation", low=0, search=(1, 50), log=True)
    update_lr: float = hyper(
        1.0,
        "learning rate of these steps relative to that of the rounds",
        low=0.0,
        search=(0.1, 10.0),
        log=True,
    )
    persist: bool = hyper(False, "the next round continues from these steps")

    def phases(self, server: Server) -> tuple[Phase, ...]:
        persistent = self.persist and server.round > 1
        return (*self.adaptation(server), Phase()) if persistent else (Phase(),)

    def aggregate(self, server: Server) -> Mixing:
        return {"all": server.uniform()}

    def adaptation(self, server: Server) -> tuple[Phase, ...]:
        return (Phase(steps=self.steps, lr=self.update_lr),)
