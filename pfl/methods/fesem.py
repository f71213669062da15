"""FeSEM: K global models; each client uses the one nearest to its trained model."""

from __future__ import annotations

from dataclasses import dataclass

from pfl.analysis.similarity import squared_distances
from pfl.core.hyper import hyper
from pfl.core.lazy import torch
from pfl.core.rng import integer_seed
from pfl.engine.method import Method, Phase
from pfl.engine.mixing import Dispatch, Mixing, normalised
from pfl.engine.types import Batch, Client, Server, Tensor
from pfl.methods._clusters import cluster_average, flattened, join_clusters


@dataclass(frozen=True)
class FeSEM(Method):
    """K global models; each client uses the one that is nearest to its trained model.

    E-step: a participant's cluster is that of the centre nearest to its upload, a(i) = argmin_k ||W_i -
    C_k||^2. M-step: a centre becomes the mean of its participants' uploads. Absent clients keep their
    cluster.

    Source: Long et al., World Wide Web 2023, https://arxiv.org/abs/2005.01026, Algorithm 1.
    State: ``server.state["clusters"]`` (n,), each client's; ``centres`` (K, P), infinite until first used.
    Evaluated: the model of the client's cluster.
    Differs from the authors: the first centres are k-means++ seeds among the first uploads (theirs: a random
        partition); distances over all parameters (their code: one layer, ``distance``); no proximal term by
        default (their code: 0.1, ``mu``); clients that never took part belong to cluster 0; a cluster without
        members is given the upload that is farthest from its own centre.
    """

    family = "clustering"
    new_client = "The model of the cluster with the lowest loss on its training samples."

    clusters: int = hyper(3, "K: number of clusters", low=1, search=(2, 10))
    distance: str = hyper(
        "all",
        "over all parameters, or the head's (authors' code)",
        choices=("all", "head"),
        search=("all", "head"),
    )
    weights: str = hyper(
        "size",
        "of the uploads in a centre: by training samples (authors' code), or equal (paper)",
        choices=("size", "equal"),
        search=("size", "equal"),
    )
    mu: float = hyper(0.0, "weight of a proximal term in local training (authors' code: 0.1)", low=0.0)

    def initialise(self, server: Server) -> None:
        parameters = sum(server.store.shape(name).numel() for name in self._names(server))
        server.state["clusters"] = torch.zeros(server.clients, dtype=torch.int64)
        server.state["centres"] = torch.full((self.clusters, parameters), torch.inf, dtype=torch.float64)

    def phases(self, server: Server) -> tuple[Phase, ...]:
        return (Phase(gradient=self._proximal if self.mu else None),)

    def aggregate(self, server: Server) -> Mixing:
        present, clusters, centres = server.participants, server.state["clusters"], server.state["centres"]
        uploads = flattened(server.uploads, self._names(server))
        if not centres.isfinite().any():
            seeds = self._seeds(server, uploads)
            centres[: len(seeds)] = seeds
        distances = squared_distances({"model": uploads}, {"model": centres})
        own, clusters[present] = distances.min(1)
        self._reseed(clusters, present, own)
        sizes = server.sizes[present]
        weights = sizes if self.weights == "size" else torch.ones_like(sizes)
        shares = (torch.arange(self.clusters, device=present.device)[:, None] == clusters[present]) * weights
        used = shares.sum(1) > 0
        centres[used] = normalised(shares[used]) @ uploads
        return {"all": cluster_average(server, clusters, weights)}

    def admit(self, server: Server) -> Dispatch:
        return join_clusters(server, self, server.state["clusters"])

    def _proximal(self, client: Client, batches: tuple[Batch, ...]) -> tuple[dict[str, Tensor], Tensor]:
        return client.pulled(*client.gradient(self.loss, batches[0]), self.mu)

    def _names(self, server: Server) -> tuple[str, ...]:
        return server.groups.trained((self.distance,))

    def _seeds(self, server: Server, uploads: Tensor) -> Tensor:
        """k-means++ seeds among ``uploads`` (K, P): at most as many as there are uploads."""
        from sklearn.cluster import kmeans_plusplus

        if not uploads.isfinite().all():  # a diverged simulation
            return uploads[: self.clusters]
        count = min(self.clusters, len(uploads))
        seed = integer_seed(server.seed, "centres") % 2**32
        _, chosen = kmeans_plusplus(uploads.numpy(force=True), count, random_state=seed)
        return uploads[torch.from_numpy(chosen)]

    def _reseed(self, clusters: Tensor, present: Tensor, distances: Tensor) -> None:
        """Give every empty cluster the participant farthest from its centre that is not alone in a cluster.

        Args:
            clusters: (n,), changed in place.
            present: (K,) participants.
            distances: (K,) squared, of the participants' uploads from their centres.
        """
        distances = distances.clone()
        for empty in range(self.clusters):
            members = clusters.bincount(minlength=self.clusters)
            free = (members[clusters[present]] > 1) & (distances > 0)
            if members[empty] == 0 and free.any():
                farthest = torch.where(free, distances, 0.0).argmax()
                clusters[present[farthest]] = empty
                distances[farthest] = 0.0
