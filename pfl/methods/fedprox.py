"""FedProx: FedAvg with a proximal term that keeps clients close to the global model."""

from __future__ import annotations

from dataclasses import dataclass

from pfl.core.hyper import hyper
from pfl.engine.method import Method, Phase
from pfl.engine.mixing import Mixing
from pfl.engine.types import Batch, Client, Server, Tensor


@dataclass(frozen=True)
class FedProx(Method):
    """Local objective ``loss + mu/2 ||theta - theta_start||^2`` on the trained parameters.

    Source: Li et al., MLSys 2020, https://arxiv.org/abs/1812.06127, Algorithm 2.
    State: none.
    Evaluated: the global model, without fine-tuning.
    Differs from the authors: participants are sampled uniformly and averaged by training samples, as in all
        methods here (paper: sampled by size, averaged uniformly); every participant trains for all its
        epochs.
    """

    family = "local objective"

    mu: float = hyper(1.0, "weight of the proximal term", low=0.0, search=(1e-4, 3.0), log=True)

    def phases(self, server: Server) -> tuple[Phase, ...]:
        return (Phase(gradient=self._proximal),)

    def aggregate(self, server: Server) -> Mixing:
        return {"all": server.average()}

    def _proximal(self, client: Client, batches: tuple[Batch, ...]) -> tuple[dict[str, Tensor], Tensor]:
        return client.pulled(*client.gradient(self.loss, batches[0]), self.mu)
