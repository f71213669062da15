"""Federations whose rounds can be computed again in plain torch: minibatches in the order of the samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pfl.data.dataset import Dataset
from pfl.data.partition import Partition
from pfl.engine.server import Server
from pfl.engine.simulation import Simulation
from pfl.models._network import Network
from tests.methods.toy import after_rounds

LR = 0.1
BATCH_SIZE = 8


def begun(
    method: str, dataset: Dataset, partition: Partition, model: str = "lenet5", **changes: Any
) -> tuple[Simulation, Server]:
    """A simulation before its first round, with one local epoch of minibatches in a fixed order."""
    changes = {"batch_order": "fixed", "batch_size": BATCH_SIZE, "lr": LR, "eval_every": 9, **changes}
    return after_rounds(method, dataset, partition, 0, model=model, **changes)


def minibatches(server: Server, client: int) -> list[tuple[Tensor, Tensor]]:
    """Images and labels of the minibatches of an epoch; one of a single sample is left out."""
    samples = torch.from_numpy(server.samples[client])
    parts = [part for part in samples.split(server.config.batch_size) if len(part) > 1]
    return [server.federation.batch(part) for part in parts]


def model_of(server: Server, client: int = 0) -> dict[str, Tensor]:
    """A client's stored tensors, parameters with a gradient."""
    stored = {name: server.store[name][client].clone() for name in server.groups["all"]}
    return {n: t.requires_grad_(n in server.groups.trainable) for n, t in stored.items()}


def extracted(net: Network, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """The features of images by the extractor among a model's ``tensors``."""
    own = {n.removeprefix("extractor."): t for n, t in tensors.items() if n.startswith("extractor.")}
    features: Tensor = torch.func.functional_call(net.extractor, own, (x,))
    return features


def first_participants(server: Server) -> list[int]:
    """Who takes part in the first round."""
    server.round = 1
    clients: list[int] = server.sample_clients().tolist()
    server.round = 0
    return clients
