"""MOON: local features are pulled towards the global model's and away from the client's last model's."""

from __future__ import annotations

from dataclasses import dataclass

from pfl.core.hyper import hyper
from pfl.core.lazy import torch
from pfl.engine.method import Method
from pfl.engine.mixing import Mixing
from pfl.engine.types import Batch, Client, Server, Tensor


@dataclass(frozen=True)
class MOON(Method):
    """FedAvg with a contrastive term between the features of three models.

    With z the features of the model in training, z' those of the received global model and z'' those of the
    model that the client trained last, the local objective is

        loss - mu log(exp(cos(z, z') / tau) / (exp(cos(z, z') / tau) + exp(cos(z, z'') / tau))).

    Both other models are in evaluation mode, and no gradient passes through them.

    Source: Li et al., CVPR 2021, https://arxiv.org/abs/2103.16257, Algorithm 1. Code compared:
        ``QinbinLi/MOON``.
    State: ``server.client_state["previous"][NAME]`` (n, *shape), the extractor that each client trained last,
        initially the common initialisation.
    Evaluated: the global model, without fine-tuning.
    Differs from the authors: z is what enters the head (theirs: the output of a projection head of two layers
        with 256 outputs that they add to the network, unlike FL-bench and PFLlib); their first round has no
        contrastive term; here its gradient is then 0. mu is 5 on CIFAR-10 in their example, and tuned.
    """

    family = "local objective"

    mu: float = hyper(1.0, "weight of the contrastive term", low=0.0, search=(0.1, 10.0), log=True)
    tau: float = hyper(0.5, "temperature", low=1e-3, search=(0.1, 1.0), log=True)

    def initialise(self, server: Server) -> None:
        names = server.groups["extractor"]
        server.client_state["previous"] = {name: server.store[name].clone() for name in names}

    def loss(self, client: Client, batch: Batch) -> Tensor:
        with client.other(client.start) as net:
            common = net.features(batch.x)
        with client.other(client.state["previous"]) as net:
            last = net.features(batch.x)
        features = client.net.features(batch.x)
        cosine = torch.nn.functional.cosine_similarity
        # -log(e^a / (e^a + e^b)) = log(1 + e^(b - a))
        logit = (cosine(features, last, dim=1) - cosine(features, common, dim=1)) / self.tau
        contrast = batch.mean(torch.nn.functional.softplus(logit))
        return batch.cross_entropy(client.net.head(features)) + self.mu * contrast

    def aggregate(self, server: Server) -> Mixing:
        for name, previous in server.client_state["previous"].items():
            previous[server.participants] = server.trained[name]
        return {"all": server.average()}
