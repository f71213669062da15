"""FedDyn: a global model with a dual correction of the clients' drift."""

from __future__ import annotations

from dataclasses import dataclass

from pfl.core.hyper import hyper
from pfl.core.lazy import torch
from pfl.engine.method import Method, Phase
from pfl.engine.mixing import Mixing
from pfl.engine.types import Batch, Client, Server, Tensor


@dataclass(frozen=True)
class FedDyn(Method):
    """A global model; each client's objective corrects for its accumulated drift.

    With a client's drift v_i (the paper's -g_i / alpha), initially 0, the local objective is

        loss(theta) + alpha_i (<v_i, theta> + 1/2 ||theta - theta^t||^2);

    afterwards v_i <- v_i + theta_i - theta^t, and theta^(t+1) is the plain mean of the participants' theta_i
    plus the mean of all clients' v. Clipping acts before weight decay.

    Source: Acar et al., ICLR 2021, https://arxiv.org/abs/2111.04263, Algorithm 1.
    State: ``server.client_state["drift"][NAME]`` (n, *shape), v; ``["alpha"]`` (n,), each client's alpha_i.
    Evaluated: the global model theta^(t+1).
    Differs from the authors: alpha_i = alpha m / m_i with m the mean of the clients' sizes m_i, and gradients
        clipped to norm 10, both as in their code (paper: one alpha, no clipping; clipped here with the term
        alpha_i theta, which their code adds afterwards); the headline is the
        corrected global model (their code reports the mean of the clients' latest models); batch norm's
        statistics are averaged and do not drift.
    """

    family = "local objective"

    alpha: float = hyper(0.1, "weight of the dynamic regulariser", low=0.0, search=(1e-3, 1.0), log=True)
    scaled: bool = hyper(True, "alpha in inverse proportion to the client's size")
    clip: float = hyper(10.0, "largest norm of a local gradient; 0 means any", low=0.0, probe=0.5)

    def initialise(self, server: Server) -> None:
        names = server.groups.trainable
        server.client_state["drift"] = {name: torch.zeros_like(server.store[name]) for name in names}
        relative = server.sizes / server.sizes.mean() if self.scaled else torch.ones_like(server.sizes)
        server.client_state["alpha"] = (self.alpha / relative).to(server.federation.dtype)

    def phases(self, server: Server) -> tuple[Phase, ...]:
        return (Phase(gradient=self._clipped if self.clip else self._corrected),)

    def aggregate(self, server: Server) -> Mixing:
        mean, corrected = server.uniform(), {}
        for name, drift in server.client_state["drift"].items():
            drift[server.participants] += server.uploads[name] - server.received[name]
            corrected[name] = server.averaged(name, mean) + drift.mean(0)
        return {"all": mean, **corrected}

    def _corrected(self, client: Client, batches: tuple[Batch, ...]) -> tuple[dict[str, Tensor], Tensor]:
        """The gradient and the value of the local objective."""
        drift, alpha = client.state["drift"], client.state["alpha"]
        gradient, value = client.pulled(*client.gradient(self.loss, batches[0]), alpha)
        linear = [drift[name].flatten() @ client.params[name].flatten() for name in gradient]
        moved = {name: part + alpha * drift[name] for name, part in gradient.items()}
        return moved, value + alpha * torch.stack(linear).sum()

    def _clipped(self, client: Client, batches: tuple[Batch, ...]) -> tuple[dict[str, Tensor], Tensor]:
        gradient, loss = self._corrected(client, batches)
        norm = client.flat(gradient).norm()
        scale = self.clip / norm.clamp(min=self.clip)
        return {name: scale * part for name, part in gradient.items()}, loss
