"""FedNova: the participants' changes are averaged per local step."""

from __future__ import annotations

from dataclasses import dataclass

from pfl.engine.method import Method
from pfl.engine.mixing import Average, Mixing
from pfl.engine.types import Server, Tensor


@dataclass(frozen=True)
class FedNova(Method):
    """FedAvg in which a client gains no weight by taking more local steps.

    With the participants' shares p_i of the training samples and the effective number a_i of their local
    steps, the server sets

        w^(t+1) = w^t + (sum_j p_j a_j) sum_i p_i (theta_i - w^t) / a_i.

    Without momentum a_i is the number of steps, tau. With momentum rho, a step also applies the earlier
    gradients, and a_i = sum_(k=1..tau) (1 - rho^k) / (1 - rho).

    Source: Wang et al., NeurIPS 2020, https://arxiv.org/abs/2007.07481, Eq. 6 and Section 4.1. Code compared:
        ``JYWa/FedNova``.
    State: none.
    Evaluated: the global model, without fine-tuning.
    Differs from the authors: batch norm's statistics are averaged by size, as in FedAvg; no server momentum
        and no proximal term, which are options of their code; every participant trains for the
        configuration's epochs (theirs: 2 to 5, drawn per client and round). Not in FL-bench or PFLlib.
    """

    family = "server optimisation"

    def aggregate(self, server: Server) -> Mixing:
        shares = server.average().weights
        steps = self._effective_steps(server)
        weights = shares * (shares @ steps) / steps
        return {"all": Average(weights, own=1 - weights.sum()), "bn_stats": server.average()}

    def _effective_steps(self, server: Server) -> Tensor:
        """(K,) a_i of the participants; 1 for a client that takes no step, whose change is 0."""
        (phase,) = self.phases(server)
        steps, rho = server.steps(server.participants, phase).clamp(min=1), server.config.momentum
        return (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
