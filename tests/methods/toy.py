"""A client whose features are its pixels, so that losses can be computed by hand; a server to look into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pfl.core.config import Config
from pfl.data.dataset import Dataset
from pfl.data.partition import Partition
from pfl.engine.client import Batch, Client
from pfl.engine.groups import bind
from pfl.engine.local_training import Backend
from pfl.engine.server import Server
from pfl.engine.simulation import Simulation
from pfl.engine.state import State
from pfl.models._network import Network
from tests.conftest import simulation_of


def tensor(values: Sequence[Any]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def client(head: list[list[float]], state: State | None = None, **params: Tensor) -> Client:
    """A client with the linear ``head`` (classes, d), without bias, and further tensors by name."""
    weight = torch.tensor(head, dtype=torch.float64)
    net = Network(nn.Flatten(), nn.Linear(weight.shape[1], weight.shape[0])).double()
    net.head.load_state_dict({"weight": weight, "bias": torch.zeros(len(weight))})
    named = {name.replace("__", "."): tensor for name, tensor in params.items()}
    tensors = {**dict(net.named_parameters()), **named}
    return Client(net, tensors, tensors, state or {})


def batch(
    features: list[list[float]], labels: list[int], padded: bool = False, noise: Tensor | None = None
) -> Batch:
    """A batch of images with these pixels; ``padded``: and of another one, which does not count."""
    pixels, real = torch.tensor(features, dtype=torch.float64), None
    if padded:
        pixels = torch.cat([pixels, torch.full_like(pixels[:1], 9.0)])
        real = torch.tensor([1.0] * len(labels) + [0.0], dtype=torch.float64)
        labels = [*labels, 1 - labels[-1]]
    return Batch(pixels[:, None, None], torch.tensor(labels), real, noise)


with_and_without_padding = pytest.mark.parametrize("padded", [False, True])


def after_rounds(
    method: str,
    dataset: Dataset,
    partition: Partition,
    rounds: int,
    backend: Backend | None = None,
    **changes: Any,
) -> tuple[Simulation, Server]:
    """A simulation, by default with lenet5_bn, after so many rounds, and its server."""
    usual: dict[str, Any] = {"model": "lenet5_bn", "rounds": 9, "epochs": 1, "batch_size": 8}
    config = Config(method=method, dtype="float64", **{**usual, **changes})
    simulation = simulation_of(config, dataset, partition, backend)
    for _ in range(rounds):
        simulation.advance()
    return simulation, simulation.runs[0].server


def features_of(
    simulation: Simulation, tensors: Mapping[str, Tensor], k: int, samples: np.ndarray
) -> tuple[Tensor, Tensor]:
    """Features and labels of a client's training samples under the k-th of ``tensors``."""
    bind(simulation.program.net, {name: stack[k] for name, stack in tensors.items()})
    simulation.program.net.eval()
    x, y = simulation.federation.batch(torch.from_numpy(samples))
    with torch.no_grad():
        return simulation.program.net.extractor(x), y
