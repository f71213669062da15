"""FedYogi: FedAvg with Yogi on the server."""

from __future__ import annotations

from dataclasses import dataclass

from pfl.engine.types import Tensor
from pfl.methods._server_optimiser import AdaptiveOptimiser


@dataclass(frozen=True)
class FedYogi(AdaptiveOptimiser):
    """The server moves by eta m / (sqrt(v) + tau), with Delta the participants' mean change and

        m <- beta_1 m + (1 - beta_1) Delta,    v <- v - (1 - beta_2) Delta^2 sign(v - Delta^2).

    v shrinks by at most (1 - beta_2) Delta^2 per round, while FedAdam's v decays at a fixed rate.

    Source: Reddi et al., ICLR 2021, https://arxiv.org/abs/2003.00295, Algorithm 2.
    State: ``server.state["mean"][NAME]`` (1, *shape), m; ``["square"][NAME]`` (1, *shape), v.
    Evaluated: the global model, without fine-tuning.
    Differs from the authors: as in FedAdam; their Yogi has the same bias correction. Flower: eta = 0.01.
    """

    family = "server optimisation"

    def squares(self, old: Tensor, new: Tensor) -> Tensor:
        return old - (1 - self.beta2) * new * (old - new).sign()
