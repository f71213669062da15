"""The textbook loop that federated benchmarks are written as, for comparison: FedAvg, and nothing clever.

A PyTorch module a client, a DataLoader, one client after another, state dicts copied and averaged.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class NaiveFedAvg:
    """FedAvg on normalised float images.

    Args:
        model: the global model.
        images: float (N, C, H, W), normalised.
        labels: int64 (N,).
        clients: indices of each client's training samples.
    """

    def __init__(
        self, model: nn.Module, images: torch.Tensor, labels: torch.Tensor, clients: list[np.ndarray]
    ):
        self.model = model
        self.sets = [TensorDataset(images[index], labels[index]) for index in clients]

    def round(self, participants: list[int], epochs: int, batch_size: int, lr: float) -> int:
        """One round; returns the number of samples trained on."""
        states, sizes = [], []
        for client in participants:
            model = copy.deepcopy(self.model)
            model.train()
            optimiser = torch.optim.SGD(model.parameters(), lr=lr)
            for _ in range(epochs):
                for x, y in DataLoader(self.sets[client], batch_size, shuffle=True):
                    optimiser.zero_grad()
                    F.cross_entropy(model(x), y).backward()
                    optimiser.step()
            states.append(model.state_dict())
            sizes.append(len(self.sets[client]))
        total = sum(sizes)
        self.model.load_state_dict(
            {
                name: sum(size / total * state[name] for size, state in zip(sizes, states, strict=True))
                for name in states[0]
            }
        )
        return epochs * total
