"""What a simulation computes (`Config`) and how it is carried out (`Execution`)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pfl.errors import unknown_name
from pfl.rounding import whole_part

BatchOrder = Literal["shuffled", "fixed", "class_stream"]
Augmentation = Literal["none", "crop_flip", "crop_flip_rotate", "flip_rotate"]
InputScale = Literal["normalised", "symmetric", "unit", "raw255"]
LRSchedule = Literal["constant", "step", "cosine"]
BNStats = Literal["mixed", "local"]
DType = Literal["float32", "float64"]
Precision = Literal["fp32", "tf32", "bf16"]
Observed = Literal["accuracy", "similarities"]


@dataclass(frozen=True)
class Config:
    """Everything that decides a simulation's numbers, except its data, its partition and its seed.

    `pfl.validation.validated` checks every field before any compute is spent.
    """

    method: str = "fedavg"
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    """The method's own; those left out take the method's defaults."""
    model: str = "cnn_digits"
    participation: float = 0.5
    """Share of the clients that take part in a round; at least one does."""
    rounds: int = 30
    epochs: int = 2
    """Local epochs per round."""
    batch_size: int = 16
    lr: float = 0.05
    momentum: float = 0.0
    weight_decay: float = 0.0
    lr_schedule: LRSchedule = "constant"
    """The learning rate over the rounds: constant, multiplied by ``lr_gamma`` after every ``lr_step`` rounds,
    or half a cosine from ``lr`` to 0. An adaptation before an evaluation always has the rate ``lr``."""
    lr_step: int = 10
    lr_gamma: float = 0.1
    lr_warmup: int = 0
    """Rounds of linear warm-up before the schedule begins."""
    batch_order: BatchOrder = "shuffled"
    """Minibatches drawn anew in every epoch; cut once from the client's samples as the partition stores them,
    the same in every epoch and round (FL-bench's release); or one endless pass over the samples class by
    class, taken up by a local training where the last one left it (the asynchronous code of LGA and PLGA)."""
    augmentation: Augmentation = "none"
    """What happens to training images at random: a crop after padding by 4 pixels, a horizontal flip, a
    rotation by up to 15 degrees (`pfl.data.augmentation`; FedCAC's code)."""
    input_scale: InputScale = "normalised"
    """Images by the data set's mean and standard deviation, from -1 to 1, from 0 to 1 as torchvision reads
    them, or as they are, 0 to 255 (the code of LGA and PLGA)."""
    bn_stats: BNStats = "mixed"
    """Batch norm's running statistics: mixed like the weights beside them, or each client's own."""
    validation: float = 0.0
    """Share of each client's training samples to evaluate on instead of its test set (for a search)."""
    eval_every: int = 5
    """Rounds between evaluations; the last round is always evaluated."""
    dtype: DType = "float32"
    precision: Precision = "fp32"
    """Of what the clients' networks compute, in training, adaptation and evaluation alike: that of ``dtype``;
    or products of float32 numbers that a GPU first rounds to TensorFloat-32; or the extractor under bfloat16
    autocast. Weights, batch norm's statistics, head, losses and optimiser stay in ``dtype``."""
    observe: Observed = "accuracy"
    """What is measured: accuracy alone, or in the end also how alike the clients are by several measures
    (`pfl.analysis.measures.similarities`)."""

    def participants(self, clients: int) -> int:
        """How many of so many clients take part in a round."""
        return max(1, whole_part(self.participation, clients))

    def lr_in(self, round: int) -> float:
        """The learning rate of a round, from 1 on.

        >>> config = Config(lr=1.0, rounds=6, lr_schedule="cosine", lr_warmup=2)
        >>> [round(config.lr_in(t), 2) for t in range(1, 7)]
        [0.33, 0.67, 1.0, 0.85, 0.5, 0.15]
        """
        if round <= self.lr_warmup:
            return self.lr * round / (self.lr_warmup + 1)
        past = round - 1 - self.lr_warmup
        if self.lr_schedule == "step":
            return self.lr * self.lr_gamma ** (past // self.lr_step)
        if self.lr_schedule == "cosine":
            return self.lr * (1 + math.cos(math.pi * past / (self.rounds - self.lr_warmup))) / 2
        return self.lr

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Config:
        """The configuration that `to_dict` wrote, or a part of it.

        Raises:
            InvalidInput: a key is not a field.
        """
        fields = [f.name for f in dataclasses.fields(cls)]
        for name in values:
            if name not in fields:
                raise unknown_name("configuration", name, fields)
        return cls(**values)


@dataclass(frozen=True)
class Execution:
    """How a simulation is carried out. Moves no number beyond rounding."""

    device: str = "auto"
    """cpu, cuda, cuda:N, or auto: cuda where there is one."""
    backend: Literal["auto", "loop", "stacked"] = "auto"
    """loop on a CPU and stacked on a GPU, unless said otherwise."""
    threads: int = 1
    moments: tuple[str, ...] = ()
    """Moments (`pfl.engine.method.Moment`) that the evaluations before the last one have; () means all. The
    last evaluation has all moments."""
    checkpoint_dir: str | None = None
    """Folder for the checkpoint; a simulation that finds its own there continues from it."""
    code: str | None = None
    """Names the code that checkpoints are of (`pfl.behaviour`); by default a digest of its text does. A
    checkpoint of other code is refused."""
    until: int | None = None
    """Pause after this round, which must be one with an evaluation, and write the checkpoint; None means run
    to the end."""
    save: str | None = None
    """File for the final models (weights only): for each seed, tensors by name, (clients, *shape), or
    (1, *shape) where all clients share one."""
