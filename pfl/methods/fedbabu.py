"""FedBABU: a global extractor under a common random head that only fine-tuning trains."""

from __future__ import annotations

from dataclasses import dataclass

from pfl.core.hyper import hyper
from pfl.engine.method import Method, Phase
from pfl.engine.mixing import Mixing
from pfl.engine.types import Server


@dataclass(frozen=True)
class FedBABU(Method):
    """The extractor trains under a common random head, which is never trained in the rounds and never sent.

    Source: Oh et al., ICLR 2022, https://arxiv.org/abs/2106.06042, Algorithm 1.
    State: none.
    Evaluated: after each client has fine-tuned a copy ("adapted", the headline); the copy is then discarded.
    Differs from the authors: learning rates are constant over the rounds (theirs fall at half and at three
        quarters). The average of the extractors is uniform, as in theirs. Batch norm's running statistics are
        averaged (their networks have none). Fine-tuning at half the rounds' learning rate is our choice.
    """

    family = "personal layers"
    headline = "adapted"

    finetune_epochs: int = hyper(
        5, "tau_f: epochs of fine-tuning", low=1, search=(1, 20), log=True, adaptation=True
    )
    finetune_lr: float = hyper(
        0.5,
        "learning rate of fine-tuning relative to that of the rounds",
        low=0.0,
        search=(0.01, 10.0),
        log=True,
        adaptation=True,
    )
    finetunes: str = hyper("all", "what is fine-tuned", choices=("all", "head"), adaptation=True)

    def phases(self, server: Server) -> tuple[Phase, ...]:
        return (Phase(trains=("extractor",)),)

    def aggregate(self, server: Server) -> Mixing:
        return {"extractor": server.uniform()}

    def adaptation(self, server: Server) -> tuple[Phase, ...]:
        return (Phase(self.finetune_epochs, trains=(self.finetunes,), lr=self.finetune_lr),)
