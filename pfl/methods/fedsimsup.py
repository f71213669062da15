"""FedSimSup: personal supervisors beside models that the server mixes for those who did not take part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pfl.engine.hyper import hyper
from pfl.engine.method import Method, Mixing, Phase
from pfl.engine.mixing import Dense
from pfl.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from pfl.config import Config
    from pfl.engine.client import Client
    from pfl.engine.server import Server
    from pfl.models._network import Network


@dataclass(frozen=True)
class FedSimSup(Method):
    """Two networks a client, logits summed: the supervisor never leaves, the model is mixed with those of
    participants whose label proportions are alike, in the rounds that the client misses.

    ``server.state["similarity"]`` (n, n) holds the cosines of the clients' label proportions.
    """

    paper = "FedSimSup, Algorithm 1, Eq. 7-9"

    supervisor_epochs: int = hyper(2, "tau_s: epochs of the supervisor", low=1, search=(1, 5))
    model_epochs: int = hyper(3, "tau_theta: epochs of the model", low=1, search=(1, 5))
    supervisor_lr: float = hyper(
        1.0, "the supervisor's learning rate over the model's", low=0.0, search=(0.1, 10.0), log=True
    )
    supervisor: str = hyper(
        "L",
        "small network of the model's kind (L), smaller CNN (C), transformer (T)",
        choices=("L", "C", "T"),
    )

    def client_network(self, network: Network, server: Server) -> Network:
        from pfl.models._supervisors import supervisor

        data = server.federation
        network.add_module("supervisor", supervisor(self.supervisor, data.shape, data.classes, network))
        return network

    def initialise(self, server: Server) -> None:
        proportions = torch.nn.functional.normalize(server.label_counts, dim=1)
        server.state["similarity"] = (proportions @ proportions.T).clamp(0, 1)

    def phases(self, server: Server) -> tuple[Phase, ...]:
        return (
            Phase(self.supervisor_epochs, trains=("supervisor",), lr=self.supervisor_lr),
            Phase(self.model_epochs, trains=("model",)),
        )

    def logits(self, client: Client, x: Tensor) -> Tensor:
        return client.net(x) + client.net.get_submodule("supervisor")(x)

    def aggregate(self, server: Server) -> Mixing:
        present = server.participants
        absent = torch.ones(server.clients, dtype=torch.bool, device=present.device)
        absent[present] = False
        rows = absent.nonzero().squeeze(1)
        similarity = server.state["similarity"][rows][:, present]
        total = similarity.sum(1)
        own = server.sizes[rows] / (server.sizes[rows] + server.sizes[present].mean())
        own = torch.where(total > 0, own, 1.0)  # nobody alike took part: the client keeps its model
        shares = similarity / torch.where(total > 0, total, 1.0)[:, None]
        return {"model": Dense((1 - own)[:, None] * shares, rows=rows, sources=present, own=own)}

    def traffic(self, server: Server) -> tuple[int, int]:
        models = len(server.participants) * server.scalars("model")
        proportions = server.label_counts.numel() if server.round == 1 else 0  # sent once, by every client
        return models, models + proportions

    def warnings(self, config: Config) -> tuple[str, ...]:
        if config.participation == 1:
            return ("fedsimsup: with participation 1 no client is ever absent, so nothing is mixed",)
        return ()
