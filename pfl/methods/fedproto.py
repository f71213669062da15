"""FedProto: personal models that share only the mean feature of each class."""

from __future__ import annotations

from dataclasses import dataclass

from pfl.core.hyper import hyper
from pfl.core.lazy import torch
from pfl.engine.method import Method
from pfl.engine.mixing import Mixing
from pfl.engine.types import Batch, Client, Federation, Network, Server, Tensor
from pfl.methods._prototypes import class_means, features


@dataclass(frozen=True)
class FedProto(Method):
    """Clients share class means of features, the prototypes, and no model.

    The local objective is ``loss + lambda mean_b,d (f(x_b) - prototype of y_b)^2``. For each class the
    server averages the class means of the clients that own the class. Prototypes are buffers of every
    client's network, so that clients who miss a round are evaluated with the newest ones.

    Source: Tan et al., AAAI 2022, https://arxiv.org/abs/2105.00243, Algorithm 1.
    State: ``server.client_state["owned"]`` (n, classes), the classes in a client's training samples.
    Evaluated: each client's own model, by the nearest prototype of its own classes (``predicts``). If none
        of a client's classes has a prototype, the client is evaluated by its head.
    Differs from the authors: means are plain, as in their code (the printed formula divides twice); they are
        taken after training in evaluation mode (theirs: during the last epoch); a class that no participant
        has keeps its prototype.
    """

    family = "knowledge transfer"

    lam: float = hyper(
        1.0, "lambda: weight of the distance to prototypes", low=0.0, search=(1e-2, 1e2), log=True
    )
    predicts: str = hyper(
        "own_classes",
        "by the nearest prototype of the client's own classes (authors), of all known ones, or by the head",
        choices=("own_classes", "known_classes", "head"),
    )

    def client_network(self, network: Network, federation: Federation) -> Network:
        classes = federation.classes
        prototypes = torch.nn.Module()
        prototypes.register_buffer("means", torch.zeros(classes, network.head.in_features))
        prototypes.register_buffer("known", torch.zeros(classes))
        network.add_module("prototypes", prototypes)
        return network

    def initialise(self, server: Server) -> None:
        server.client_state["owned"] = server.label_counts > 0

    def loss(self, client: Client, batch: Batch) -> Tensor:
        features = client.net.features(batch.x)
        distances = (features - client.params["prototypes.means"][batch.y]).square().mean(1)
        pull = batch.mean(distances * client.params["prototypes.known"][batch.y])
        return batch.cross_entropy(client.net.head(features)) + self.lam * pull

    def aggregate(self, server: Server) -> Mixing:
        means, _ = class_means(server, server.trained)
        owners = (server.label_counts[server.participants] > 0).sum(0)[:, None]
        old = server.received["prototypes.means"][0]
        new = (means.sum(0) / owners.clamp(min=1)).to(old.dtype)
        known = server.received["prototypes.known"][0]
        # Only known prototypes are sent.
        received, sent = len(server.participants) * int(known.sum()), int(owners.sum())
        server.count("prototypes.means", down=received * features(server), up=sent * features(server))
        server.count("prototypes.known")
        return {
            "prototypes.means": torch.where(owners > 0, new, old)[None],
            "prototypes.known": torch.where(owners[:, 0] > 0, 1.0, known)[None],
        }

    def scores(self, client: Client, x: Tensor, logits: Tensor) -> Tensor:
        if self.predicts == "head":
            return logits
        candidates = client.params["prototypes.known"] > 0
        if self.predicts == "own_classes":
            candidates = candidates & client.state["owned"]
        means = client.params["prototypes.means"]
        # |f|^2 / 2 - |f - c|^2 / 2, which ranks classes like the distance, without a (B, classes, d) tensor.
        closeness = client.net.features(x) @ means.T - means.square().sum(1) / 2
        return torch.where(candidates.any(), torch.where(candidates, closeness, -torch.inf), logits)
