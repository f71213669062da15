"""Class means of features, which some methods send with models or instead of them."""

from __future__ import annotations

from collections.abc import Mapping

from pfl.core.lazy import torch
from pfl.engine.types import Batch, Client, Server, Tensor


def class_means(server: Server, models: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Statistics of the features of the participants' training samples, by ``models`` in evaluation mode.

    Returns:
        (K, classes, d) mean feature of each class, 0 if the client lacks it, and (K,) mean squared norm of
        all features; float64.
    """
    classes = server.federation.classes

    def sums(client: Client, batch: Batch) -> dict[str, Tensor]:
        features = client.net.features(batch.x)
        members = (batch.y[:, None] == torch.arange(classes, device=batch.y.device)).to(features)
        if batch.rows is not None:
            members = members * batch.rows[:, None]
        return {"features": members.T @ features, "squares": batch.sum(features.square().sum(1))}

    present = server.participants
    totals = server.collect(sums, present, models)
    counts = server.label_counts[present]
    return totals["features"] / counts.clamp(min=1)[..., None], totals["squares"] / server.sizes[present]


def features(server: Server) -> int:
    """d, the number of features that enter the head."""
    return server.store.shape("head.weight")[-1]
