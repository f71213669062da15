"""FedAdam: FedAvg with Adam on the server."""

from __future__ import annotations

from dataclasses import dataclass

from pfl.engine.types import Tensor
from pfl.methods._server_optimiser import AdaptiveOptimiser


@dataclass(frozen=True)
class FedAdam(AdaptiveOptimiser):
    """The server moves by eta m / (sqrt(v) + tau), with Delta the participants' mean change and

        m <- beta_1 m + (1 - beta_1) Delta,    v <- beta_2 v + (1 - beta_2) Delta^2.

    There is no bias correction; v is initially tau^2.

    Source: Reddi et al., ICLR 2021, https://arxiv.org/abs/2003.00295, Algorithm 2.
    State: ``server.state["mean"][NAME]`` (1, *shape), m; ``["square"][NAME]`` (1, *shape), v.
    Evaluated: the global model, without fine-tuning.
    Differs from the authors: the change is averaged by training samples, as in their code (in Algorithm 2
        uniformly). Their code (https://github.com/google-research/federated) has Keras' bias correction and
        starts v at 0; Algorithm 2, and this class, do not. They tune eta and tau for each data set, so the
        defaults are one point of their grids. Batch norm's statistics are averaged. Flower: eta = 0.1 and
        tau = 1e-3, the defaults here.
    """

    family = "server optimisation"

    def squares(self, old: Tensor, new: Tensor) -> Tensor:
        return old.lerp(new, 1 - self.beta2)
