"""The similarity measures that methods use (pFedSim, Table 2)."""

from __future__ import annotations

from typing import Any

from pfl.analysis.similarity import class_cosines, cosines, data_similarity, statistics_distances
from pfl.core.lazy import torch
from pfl.engine.types import Batch, Client, Network, Server, Tensor


def similarities(server: Server, _: Network) -> dict[str, Any] | None:
    """After the last round, the matrix (n, n) of every measure by name; before it, None.

    "data": the share of samples in common classes. "wdb": 1 / FedAP's distance of batch norm statistics, if
    the network has any. "mdb": cosines of the last round's updates, if all clients took part in it. "ldb":
    FedFomo's loss difference over the distance of the models, averaged over both directions. "cs":
    cosines of the heads, averaged over the classes.
    """
    if server.round < server.rounds:
        return None
    store = server.store
    norms = [name.removesuffix(".running_mean") for name in store.tensors if name.endswith("running_mean")]
    models = torch.cat([store[name].flatten(1).double() for name in server.groups.trainable], 1)
    distances = torch.cdist(models, models)
    losses = _losses(server)
    gains = (losses.diagonal()[:, None] - losses) / torch.where(distances > 0, distances, 1.0)
    matrices = {
        "data": data_similarity(server.label_counts),
        "ldb": (gains + gains.T) / 2,
        "cs": class_cosines(store["head.weight"]).mean(0),
    }
    if torch.equal(server.participants, server.client_ids):
        changes = {name: server.uploads[name] - server.received[name] for name in server.groups.trainable}
        matrices["mdb"] = cosines(changes, changes)
    if norms:
        means, variances = (
            [store[f"{name}.{kind}"] for name in norms] for kind in ("running_mean", "running_var")
        )
        distances = statistics_distances(means, variances)
        matrices["wdb"] = torch.where(distances > 0, 1 / distances, 0.0)
    return {name: matrix.tolist() for name, matrix in matrices.items()}


def _losses(server: Server) -> Tensor:
    """Mean cross-entropy (n, n) of the column's model on the training data of the row's client."""
    import torch.nn.functional as F

    def statistic(client: Client, batch: Batch) -> dict[str, Tensor]:
        return {"loss": batch.sum(F.cross_entropy(client.net(batch.x), batch.y, reduction="none"))}

    columns = []
    for other in range(server.clients):
        model = {name: server.store[name][[other] * server.clients] for name in server.store.tensors}
        columns.append(server.collect(statistic, server.client_ids, model)["loss"] / server.sizes)
    return torch.stack(columns, 1)
