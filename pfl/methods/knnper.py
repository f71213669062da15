"""kNN-Per: a global model whose predictions are mixed with the client's nearest training samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pfl.core.hyper import hyper
from pfl.core.lazy import torch
from pfl.engine.method import Method, Moment
from pfl.engine.mixing import Mixing
from pfl.engine.types import Batch, Client, Federation, Network, Server, Tensor


@dataclass(frozen=True)
class KNNPer(Method):
    """FedAvg; a client predicts with the global model and with its nearest training samples.

    With f the extractor, d its width, and N(x) the k training samples whose features are nearest to f(x), the
    class scores are

        lambda sum_(j in N(x)) w_j onehot(y_j) + (1 - lambda) softmax(logits(x)),
        w_j proportional to exp(-||f(x) - f(x_j)||^2 / (d scale)), with sum 1.

    Source: Marfoq et al., ICML 2022, https://arxiv.org/abs/2111.09360, Eq. 8 and 9. Code compared:
        ``omarfoq/knn-per``.
    State: none; the features of the training samples are computed for each evaluation.
    Evaluated: the global model with the client's own neighbours; the loss is that of the global model alone.
    Differs from the authors: lambda is the same for all clients (theirs: the best of a grid for each client,
        on validation data); all training samples are stored (theirs: a capacity). The kernel is their code's
        (paper: exp(-distance)). FL-bench mixes with the raw logits instead of the probabilities, takes the
        features before the last ReLU, and fixes lambda = 0.5.
    """

    family = "knowledge transfer"
    personal_collects = True

    lam: float = hyper(0.5, "lambda: weight of the neighbours", low=0.0, high=1.0, search=(0.0, 1.0))
    k: int = hyper(10, "number of neighbours", low=1, search=(3, 30), log=True, probe=3)
    scale: float = hyper(1.0, "scale of the squared distances", low=1e-6, search=(0.1, 10.0), log=True)

    def client_network(self, network: Network, federation: Federation) -> Network:
        # The client's training samples: features, and labels + 1, which leaves 0 for an empty place.
        places = max(map(len, federation.train))
        store = torch.nn.Module()
        store.register_buffer("features", torch.zeros(places, network.head.in_features))
        store.register_buffer("classes", torch.zeros(places))
        network.add_module("store", store)
        return network

    def aggregate(self, server: Server) -> Mixing:
        return {"model": server.average()}

    def personal(self, server: Server, moment: Moment, clients: slice = slice(None)) -> Mapping[str, Tensor]:
        tensors = server.personal(moment, clients)
        samples = server.collect(_sample, server.client_ids[clients], tensors, each=True)
        places = server.store.shape("store.classes")[0]
        pad, dtype = torch.nn.functional.pad, server.federation.dtype
        missing = places - samples["classes"].shape[1]
        tensors["store.features"] = pad(samples["features"].to(dtype), (0, 0, 0, missing))
        tensors["store.classes"] = pad(samples["classes"].to(dtype), (0, missing))
        return tensors

    def scores(self, client: Client, x: Tensor, logits: Tensor) -> Tensor:
        features, classes = client.params["store.features"], client.params["store.classes"]
        own = client.net.features(x)
        squares = (own[:, None] - features).square().sum(2)
        closeness = torch.where(classes > 0, -squares / (features.shape[1] * self.scale), -torch.inf)
        nearest = closeness.topk(min(self.k, len(classes)), dim=1)
        labels = classes[nearest.indices] - 1
        members = labels[..., None] == torch.arange(logits.shape[1], device=x.device)
        neighbours = (nearest.values.softmax(1)[..., None] * members).sum(1)
        return self.lam * neighbours + (1 - self.lam) * logits.softmax(1)


def _sample(client: Client, batch: Batch) -> dict[str, Tensor]:
    """The store's entries for each sample."""
    return {"features": client.net.features(batch.x), "classes": batch.y + 1}
