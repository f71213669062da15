"""Clusters of clients that share a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pfl.core.lazy import torch
from pfl.engine.mixing import Dense, normalised

if TYPE_CHECKING:
    from torch import Tensor

    from pfl.engine.server import Server


def flattened(tensors: Mapping[str, Tensor], names: Sequence[str]) -> Tensor:
    """The tensors ``names``, (K, *shape) each, as one float64 (K, P)."""
    return torch.cat([tensors[name].flatten(1) for name in names], 1).double()


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
