"""The textbook loop of federated benchmarks, for comparison: FedAvg without optimisation for speed.

A PyTorch module per client, a DataLoader, one client after another, state dicts copied and averaged.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

if TYPE_CHECKING:
    from pfl.data.dataset import Dataset
    from pfl.data.partition import Partition


class TextbookFedAvg:
    """FedAvg on normalised float images, which stay in main memory; batches go to the model's device.

    Args:
        model: the global model.
        dataset: the images.
        partition: which client has which images, for training and for testing.
        batch_size: images per step, in training and in evaluation.
        shuffle: redraw the batches in every epoch.
    """

    def __init__(
        self,
        model: nn.Module,
        dataset: Dataset,
        partition: Partition,
        batch_size: int,
        shuffle: bool = True,
    ):
        mean, std = (torch.tensor(value).view(-1, 1, 1) for value in (dataset.mean, dataset.std))
        images = torch.from_numpy(dataset.images).float().div_(255).sub_(mean).div_(std)
        labels = torch.from_numpy(dataset.labels)

        def sets(clients: Sequence[np.ndarray]) -> list[TensorDataset]:
            return [TensorDataset(images[index], labels[index]) for index in clients]

        self.model = model
        self.device = next(model.parameters()).device
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.train_sets, self.test_sets = sets(partition.train), sets(partition.test)

    def train(
        self, participants: Sequence[int], epochs: int, lr: float
    ) -> tuple[int, list[dict[str, Tensor]]]:
        """Local training of a round; returns how many samples were trained on, and the state dicts."""
        states, samples = [], 0
        for client in participants:
            model = copy.deepcopy(self.model)
            model.train()
            optimiser = torch.optim.SGD(model.parameters(), lr=lr)
            for _ in range(epochs):
                for images, labels in DataLoader(self.train_sets[client], self.batch_size, self.shuffle):
                    x, y = images.to(self.device), labels.to(self.device)
                    optimiser.zero_grad()
                    F.cross_entropy(model(x), y).backward()
                    optimiser.step()
                    samples += len(y)
            states.append(model.state_dict())
        return samples, states

    def aggregate(self, participants: Sequence[int], states: Sequence[dict[str, Tensor]]) -> None:
        """Average the clients' models, weighted by their numbers of training samples."""
        sizes = [len(self.train_sets[client]) for client in participants]
        self.model.load_state_dict(
            {
                name: sum(size / sum(sizes) * state[name] for size, state in zip(sizes, states, strict=True))
                for name in states[0]
            }
        )

    @torch.no_grad()
    def evaluate(self) -> list[float]:
        """Accuracy of the global model on each client's test set."""
        self.model.eval()
        accuracies = []
        for data in self.test_sets:
            correct = 0
            for images, labels in DataLoader(data, self.batch_size):
                x, y = images.to(self.device), labels.to(self.device)
                correct += (self.model(x).argmax(1) == y).sum().item()
            accuracies.append(correct / max(len(data), 1))
        return accuracies
