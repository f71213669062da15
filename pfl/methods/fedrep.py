"""FedRep: a global extractor and personal heads, trained one after the other."""

from __future__ import annotations

from dataclasses import dataclass

from pfl.core.hyper import hyper
from pfl.engine.method import Method, Phase
from pfl.engine.mixing import Mixing
from pfl.engine.types import Config, Server


@dataclass(frozen=True)
class FedRep(Method):
    """The head trains on a frozen extractor, then the extractor under the frozen head.

    By default, the head trains for the configuration's epochs minus those of the extractor, so that all
    methods train for the same number of epochs.

    Source: Collins et al., ICML 2021, https://arxiv.org/abs/2102.07078, Algorithm 1.
    State: only the personal heads.
    Evaluated: the global extractor under the client's own head. With ``final_head_epochs`` also "adapted":
        every client first trains its head for that many epochs, on a copy.
    Differs from the authors: their 11 epochs per round are 10 for the head and 1 for the extractor; here the
        sum is the configuration's; the extractor is averaged by training samples (paper: uniformly); a final
        training of every head is optional, and the accuracy without it is also reported.
    """

    family = "personal layers"
    new_client = "The global extractor and the mean of the heads; only the head adapts, as in the paper."

    head_epochs: int = hyper(
        0, "epochs of the head; 0 means those that the extractor leaves, at least 1", low=0, search=(1, 10)
    )
    extractor_epochs: int = hyper(1, "epochs of the extractor", low=1, search=(1, 5))
    head_lr: float = hyper(
        1.0, "the head's learning rate relative to the extractor's", low=0.0, search=(0.1, 10.0), log=True
    )
    final_head_epochs: int = hyper(
        0,
        'epochs of the head before the evaluation "adapted", for every client (authors: 10)',
        low=0,
        adaptation=True,
    )

    def phases(self, server: Server) -> tuple[Phase, ...]:
        return (
            Phase(self._head_epochs(server.config), trains=("head",), lr=self.head_lr),
            Phase(self.extractor_epochs, trains=("extractor",)),
        )

    def aggregate(self, server: Server) -> Mixing:
        return {"extractor": server.average()}

    def adaptation(self, server: Server) -> tuple[Phase, ...]:
        if not self.final_head_epochs:
            return ()
        return (Phase(self.final_head_epochs, trains=("head",), lr=self.head_lr),)

    def adapt(self, server: Server) -> None:
        server.adapt(self.adaptation(server) or (Phase(trains=("head",), lr=self.head_lr),))

    def warnings(self, config: Config) -> tuple[str, ...]:
        head, extractor = self._head_epochs(config), self.extractor_epochs
        if head + extractor == config.epochs:
            return ()
        return (f"fedrep: trains for {head} + {extractor} epochs (head, extractor), not {config.epochs}",)

    def _head_epochs(self, config: Config) -> int:
        return self.head_epochs or max(config.epochs - self.extractor_epochs, 1)
