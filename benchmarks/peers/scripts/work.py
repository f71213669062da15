"""The work that every script does, and its record: what the benchmark hands out and what it gets back.

It imports only torch and numpy, because it runs in the environment of each framework.
"""

from __future__ import annotations

import json
import platform
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

TEST_BATCH = 500


@dataclass
class Work:
    """A federation and its schedule, as `benchmarks.peers.inputs` writes them.

    Attributes:
        inputs: folder of the images, the partition, the participants and the first weights.
        rounds, epochs, batch_size, lr: the schedule.
        eval_every: rounds between evaluations; the last round is evaluated, too.
        shuffle: redraw the batches in every epoch; otherwise they are in the order of the partition.
        workers: cores that the framework may use.
        device: cpu or cuda.
        began: `time.time` when the process was started.
        record: JSON file for what was measured.
        weights: file for the global model after the last round.
        rule: the partition, as this project writes it.
    """

    inputs: str
    model: str
    rounds: int
    epochs: int
    batch_size: int
    lr: float
    eval_every: int
    shuffle: bool
    workers: int
    device: str
    began: float
    record: str
    weights: str
    rule: str

    @classmethod
    def read(cls, file: str) -> Work:
        return cls(**json.loads(Path(file).read_text()))

    @property
    def folder(self) -> Path:
        return Path(self.inputs)

    @property
    def partition(self) -> dict[str, Any]:
        """``train`` and ``test``: lists of indices per client; ``participants``: of each round; ``mean`` and
        ``std`` of each channel."""
        return _partition(self.folder / "partition.json")

    @property
    def clients(self) -> int:
        return len(self.partition["train"])

    def due(self, round: int) -> bool:
        """Whether the global model is evaluated after this round, from 1 on."""
        return round % self.eval_every == 0 or round == self.rounds

    def samples(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        """Normalised float32 images (N, 3, 32, 32) and int64 labels (N,)."""
        partition = self.partition
        images = np.load(self.folder / "images.npy", mmap_mode="r")[indices]
        labels = np.load(self.folder / "labels.npy", mmap_mode="r")[indices]
        mean, std = (torch.tensor(partition[name]).view(-1, 1, 1) for name in ("mean", "std"))
        return torch.from_numpy(images).float().div_(255).sub_(mean).div_(std), torch.from_numpy(labels)

    def train_samples(self, client: int) -> tuple[Tensor, Tensor]:
        return self.samples(self.partition["train"][client])

    def test_samples(self) -> tuple[Tensor, Tensor]:
        """The test samples of all clients."""
        return self.samples(list(chain.from_iterable(self.partition["test"])))

    def network(self) -> nn.Module:
        """The network with the first weights."""
        net = network(self.model)
        net.load_state_dict(torch.load(self.folder / f"{self.model}.pt"))
        return net.to(self.device)


@cache
def _partition(file: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(file.read_text())
    return content


def network(model: str) -> nn.Module:
    """LeNet-5 with batch norm, or PFedCS's CNN, as a user of PyTorch writes them."""
    channels, hidden = {"lenet5_bn": ((6, 16), (120, 84)), "cnn4": ((32, 64), (512,))}[model]
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for i, (before, after) in enumerate(zip((3, *channels), channels, strict=False), start=1):
        layers[f"conv{i}"] = nn.Conv2d(before, after, 5)
        if model == "lenet5_bn":
            layers[f"bn{i}"] = nn.BatchNorm2d(after)
        layers[f"pool{i}"] = nn.MaxPool2d(2)
        layers[f"relu{i}"] = nn.ReLU()
    layers["flatten"] = nn.Flatten()
    for i, (before, after) in enumerate(zip((channels[-1] * 25, *hidden), hidden, strict=False), start=1):
        layers[f"fc{i}"] = nn.Linear(before, after)
        layers[f"fc{i}_relu"] = nn.ReLU()
    layers["head"] = nn.Linear(hidden[-1], 10)
    return nn.Sequential(layers)


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Per cent of the images that ``model`` classifies correctly."""
    model.eval()
    device = next(model.parameters()).device
    batches = zip(images.split(TEST_BATCH), labels.split(TEST_BATCH), strict=True)
    correct = sum((model(x.to(device)).argmax(1) == y.to(device)).sum().item() for x, y in batches)
    return float(100 * correct / len(labels))


@dataclass
class Record:
    """What a script measures.

    Attributes:
        framework: name of its distribution.
        setting: its settings for speed, in words.
        spans: of each participant's local training: round, start and end in seconds of `time.time`, samples.
        accuracies: in per cent, by round.
    """

    work: Work
    framework: str
    setting: str
    spans: list[tuple[int, float, float, int]] = field(default_factory=list)
    accuracies: dict[int, float] = field(default_factory=dict)

    @contextmanager
    def training(self, round: int, samples: int) -> Iterator[None]:
        """Measure a participant's local training."""
        began = time.time()
        yield
        self.spans.append((round, began, time.time(), samples))

    def write(self, model: nn.Module) -> None:
        """Write the record and the global model's tensors.

        A round's local training lasts from its first participant's start to the last one's end.
        """
        rounds = {span[0] for span in self.spans}
        by_round = [[span for span in self.spans if span[0] == number] for number in rounds]
        training = sum(max(span[2] for span in spans) - min(span[1] for span in spans) for spans in by_round)
        startup = min(span[1] for span in self.spans) - self.work.began
        self.write_figures(sum(span[3] for span in self.spans), training, startup, tensors(model))

    def write_figures(
        self, samples: int, training_seconds: float, startup_seconds: float, weights: list[Tensor]
    ) -> None:
        figures = {
            "framework": self.framework,
            "version": version(self.framework),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "setting": self.setting,
            "samples": samples,
            "training_seconds": training_seconds,
            "startup_seconds": startup_seconds,
            "accuracies": self.accuracies,
        }
        torch.save([tensor.cpu() for tensor in weights], self.work.weights)
        Path(self.work.record).write_text(json.dumps(figures))


def tensors(model: nn.Module) -> list[Tensor]:
    """Parameters and running statistics, in the order of the layers."""
    return [tensor for tensor in model.state_dict().values() if tensor.is_floating_point()]
