"""Clusters of clients that share a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pfl.core.lazy import torch
from pfl.engine.method import Method
from pfl.engine.mixing import Dense, Dispatch, normalised
from pfl.engine.types import Batch, Client, Server, Tensor


def flattened(tensors: Mapping[str, Tensor], names: Sequence[str]) -> Tensor:
    """The tensors ``names``, (K, *shape) each, as one float64 (K, P)."""
    return torch.cat([tensors[name].flatten(1) for name in names], 1).double()


def join_clusters(server: Server, method: Method, clusters: Tensor) -> Dispatch:
    """Put every participant into the cluster whose model has the lowest loss on its training samples.

    Args:
        clusters: (n,) cluster of each client; the participants' are changed in place.

    Returns:
        A dispatch of the clusters' models.
    """

    def loss(client: Client, batch: Batch) -> dict[str, Tensor]:
        logits = method.logits(client, batch.x)
        return {"loss": batch.sum(torch.nn.functional.cross_entropy(logits, batch.y, reduction="none"))}

    present, others = server.participants, server.others
    members = torch.stack([others[clusters[others] == cluster][0] for cluster in clusters[others].unique()])
    losses = [  # of every cluster's model, stored for its first member
        server.collect(loss, present, server.store.rows(member.expand(len(present))))["loss"]
        for member in members
    ]
    nearest = members[torch.stack(losses).argmin(0)]
    clusters[present] = clusters[nearest]
    return {"all": Dense(torch.nn.functional.one_hot(nearest, server.clients).double())}


def cluster_average(server: Server, clusters: Tensor, weights: Tensor) -> Dense:
    """Every client gets the mean of its cluster's participants; if there are none, it keeps its model.

    Args:
        clusters: (n,) cluster of each client.
        weights: (K,) non-negative weight of each participant.
    """
    present = server.participants
    matrix = (clusters[:, None] == clusters[present]) * weights
    rows = (matrix.sum(1) > 0).nonzero().squeeze(1)
    return Dense(normalised(matrix[rows]), rows=rows, sources=present)
