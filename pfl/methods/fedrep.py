"""FedRep: a global extractor and personal heads, trained one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pfl.engine.hyper import hyper
from pfl.engine.method import Method, Phase
from pfl.engine.mixing import Mixing

if TYPE_CHECKING:
    from pfl.engine.server import Server


@dataclass(frozen=True)
class FedRep(Method):
    """The head trains on a frozen extractor, then the extractor under a frozen head."""

    paper = "Collins et al., ICML 2021, Algorithm 1"

    head_epochs: int = hyper(2, "epochs of the head", low=1, search=(1, 10))
    extractor_epochs: int = hyper(3, "epochs of the extractor", low=1, search=(1, 5))
    head_lr: float = hyper(
        1.0, "the head's learning rate over the extractor's", low=0.0, search=(0.1, 10.0), log=True
    )

    def phases(self, server: Server) -> tuple[Phase, ...]:
        return (
            Phase(self.head_epochs, trains=("head",), lr=self.head_lr),
            Phase(self.extractor_epochs, trains=("extractor",)),
        )

    def aggregate(self, server: Server) -> Mixing:
        return {"extractor": server.average()}
