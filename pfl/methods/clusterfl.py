"""ClusterFL: a model per cluster of clients; clusters split where their clients disagree."""

from __future__ import annotations

from dataclasses import dataclass

from pfl.analysis.similarity import ZERO, cosines
from pfl.core.hyper import hyper
from pfl.core.lazy import torch
from pfl.engine.method import Method
from pfl.engine.mixing import Dispatch, Mixing
from pfl.engine.types import Config, Server, Tensor
from pfl.methods._clusters import cluster_average, flattened, join_clusters

FEWEST = 4
"""Number of participating members that a split requires, so that both parts can have two clients."""


@dataclass(frozen=True)
class ClusterFL(Method):
    """Each cluster of clients shares one model; a cluster splits if its clients' changes disagree.

    A cluster's model moves by the plain mean of its members' changes Delta_i. A cluster splits in two if its
    mean change is small, ||mean_i Delta_i|| < eps1, and some member's is large, max_i ||Delta_i|| > eps2. The
    parts are found by agglomerative clustering on -cos(Delta_i, Delta_j).

    Source: Sattler et al., IEEE TNNLS 2020, https://arxiv.org/abs/1910.01991.
    State: ``server.state["clusters"]`` (n,), the cluster of each client; ``changes`` (n, P), each client's
        last Delta; ``unit``, the mean norm of Delta in the first round in which clusters may split.
    Evaluated: the model of the client's cluster.
    Differs from the authors: complete linkage (paper: the bipartition of single linkage) and no bound
        ``gamma`` on a split, both as in their code; only participants whose model changed count; when a
        cluster splits, an absent member follows the part whose present members' changes have the larger mean
        cosine with its own last change; positions in the clustering are mapped back to client ids, which
        their notebook omits; thresholds may be relative to ``unit``, since absolute ones do not transfer to
        another network.
    """

    family = "clustering"
    new_client = "The model of the cluster with the lowest loss on its training samples."

    eps1: float = hyper(
        0.4,
        "a cluster may split if its mean change is shorter",
        low=0.0,
        search=(0.05, 0.8),
        when=("thresholds", "relative"),
        probe=100.0,
    )
    eps2: float = hyper(
        1.6,
        "a cluster may split if a member's change is longer",
        low=0.0,
        search=(0.5, 3.0),
        when=("thresholds", "relative"),
        probe=0.0,
    )
    thresholds: str = hyper(
        "absolute",
        "eps1 and eps2 as they are, or times the mean norm in the first round that may split",
        choices=("absolute", "relative"),
        search=("relative",),
    )
    least_members: int = hyper(2, "n_min: clusters with at most this many members never split", low=0)
    first_split: int = hyper(20, "t_0: the first round that may split", low=1, search=(5, 50), probe=2)
    linkage: str = hyper(
        "complete",
        "complete (authors' code) or single (the paper's optimal bipartition)",
        choices=("complete", "single"),
    )
    gamma: float = hyper(
        0.0, "gamma_max: no split below sqrt((1 - largest cosine across the parts) / 2)", low=0.0, high=1.0
    )

    def initialise(self, server: Server) -> None:
        parameters = sum(server.store.shape(name).numel() for name in server.groups.trainable)
        server.state["clusters"] = torch.zeros(server.clients, dtype=torch.int64)
        server.state["changes"] = torch.zeros(server.clients, parameters, dtype=server.federation.dtype)
        server.state["unit"] = torch.zeros((), dtype=torch.float64)

    def aggregate(self, server: Server) -> Mixing:
        names = server.groups.trainable
        changes = flattened(server.uploads, names) - flattened(server.received, names)
        norms = changes.norm(dim=1)
        moved = (norms > ZERO) & norms.isfinite()  # a client without batches does not count
        stored = server.state["changes"]
        stored[server.participants[moved]] = changes[moved].to(stored.dtype)
        if server.round >= self.first_split and moved.any():
            if server.state["unit"] == 0:
                server.state["unit"] = norms[moved].mean()
            self._split_all(server, server.participants[moved], changes[moved])
        return {"all": cluster_average(server, server.state["clusters"], moved.double())}

    def admit(self, server: Server) -> Dispatch:
        return join_clusters(server, self, server.state["clusters"])

    def warnings(self, config: Config) -> tuple[str, ...]:
        if config.rounds < self.first_split:
            return (f"clusterfl: no cluster can split before round first_split = {self.first_split}",)
        return ()

    def _split_all(self, server: Server, ids: Tensor, changes: Tensor) -> None:
        """Split clusters where the criteria hold, by the ``changes`` (K, P) of the clients ``ids`` (K,)."""
        clusters = server.state["clusters"]
        unit = server.state["unit"] if self.thresholds == "relative" else 1.0
        for cluster in clusters.unique():
            here = clusters[ids] == cluster
            members = (clusters == cluster).nonzero().squeeze(1)
            present, theirs = ids[here], changes[here]
            if len(present) < FEWEST or len(members) <= self.least_members:
                continue
            if theirs.mean(0).norm() >= self.eps1 * unit or theirs.norm(dim=1).max() <= self.eps2 * unit:
                continue
            second = self._bipartition(_cosines(theirs, theirs))
            if second is None:
                continue
            absent = members[~torch.isin(members, present)]
            alike = _cosines(server.state["changes"][absent], theirs)
            follows = alike[:, second].mean(1) > alike[:, ~second].mean(1)
            clusters[torch.cat([present[second], absent[follows]])] = clusters.max() + 1

    def _bipartition(self, alike: Tensor) -> Tensor | None:
        """(K,) mask of the second part's members, from cosines (K, K); None if the parts are too similar."""
        from sklearn.cluster import AgglomerativeClustering

        clustering = AgglomerativeClustering(n_clusters=2, metric="precomputed", linkage=self.linkage)
        parts = clustering.fit_predict((1 - alike).numpy(force=True))
        second = torch.from_numpy(parts == 1)
        across = alike[second][:, ~second].max()
        return second if ((1 - across) / 2).sqrt() >= self.gamma else None


def _cosines(changes: Tensor, others: Tensor) -> Tensor:
    return cosines({"change": changes}, {"change": others})
