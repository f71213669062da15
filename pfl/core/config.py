"""Configuration of a simulation (`Config`) and of its execution (`Execution`)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pfl.core.errors import check_names
from pfl.core.hyper import LARGEST
from pfl.core.rounding import whole_part

Augmentation = Literal["none", "crop_flip", "crop_flip_rotate", "flip_rotate"]
InputScale = Literal["normalised", "symmetric", "unit", "raw255", "mnist", "cifar10", "cifar100"]
Precision = Literal["fp32", "tf32", "bf16"]


@dataclass(frozen=True)
class Accepted:
    """The accepted numbers of a field, as a predicate and a description."""

    test: Callable[[float], bool]
    words: str


Count = Annotated[
    int,
    Accepted(lambda n: 1 <= n <= LARGEST[int], f"a positive integer, up to {LARGEST[int]:g}"),
]
CountOrZero = Annotated[
    int,
    Accepted(lambda n: 0 <= n <= LARGEST[int], f"a non-negative integer, up to {LARGEST[int]:g}"),
]
PositiveRate = Annotated[
    float, Accepted(lambda rate: 0 < rate <= LARGEST[float], f"a number above 0, up to {LARGEST[float]:g}")
]
Rate = Annotated[
    float,
    Accepted(lambda rate: 0 <= rate <= LARGEST[float], f"a non-negative number, up to {LARGEST[float]:g}"),
]
Share = Annotated[float, Accepted(lambda share: 0 < share <= 1, "a number in (0, 1]")]
Fraction = Annotated[float, Accepted(lambda share: 0 <= share < 1, "a number in [0, 1)")]
ProperFraction = Annotated[float, Accepted(lambda share: 0 < share < 1, "a number in (0, 1)")]


@dataclass(frozen=True)
class Config:
    """Everything that determines the results of a simulation, except its data, partition and seed.

    >>> Config(method="fedprox", hyperparameters={"mu": 0.1}, rounds=50).rounds
    50

    The types state what each field accepts; `pfl.run.validation.validated` checks it before any computation.
    Tables have the training options under the same names, with the same descriptions.
    """

    method: str = "fedavg"
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    """Hyperparameters of the method; omitted ones keep their defaults."""
    model: str = "cnn_digits"
    participation: Share = 0.5
    """Share of the clients that train in a round; at least one client trains."""
    rounds: Count = 30
    """Communication rounds."""
    epochs: Count = 2
    """Local epochs per round."""
    batch_size: Count = 16
    """Samples per minibatch."""
    lr: PositiveRate = 0.05
    """Learning rate of SGD."""
    momentum: Fraction = 0.0
    """Momentum of SGD."""
    weight_decay: Rate = 0.0
    """Weight decay of SGD."""
    lr_schedule: Literal["constant", "step", "cosine"] = "constant"
    """Learning rate over the rounds. `constant`: `lr`. `step`: multiplied by `lr_gamma` after every `lr_step`
    rounds. `cosine`: cosine annealing from `lr` to 0. The adaptation before an evaluation uses `lr`."""
    lr_step: Count = 10
    """Rounds between two steps of the schedule `step`."""
    lr_gamma: Share = 0.1
    """Factor of the learning rate at each step of the schedule `step`."""
    lr_warmup: CountOrZero = 0
    """Rounds of linear warm-up before the schedule begins."""
    batch_order: Literal["shuffled", "fixed", "class_stream"] = "shuffled"
    """`shuffled`: minibatches are redrawn in every epoch. `fixed`: minibatches are formed once, in the order
    of the partition, and reused in every epoch and round (FL-bench's release). `class_stream`: an endless
    pass over the samples, class by class, which each local training resumes (the asynchronous code of LGA
    and PLGA).
    """
    last_batch: Literal["kept", "dropped"] = "kept"
    """What happens to an epoch's incomplete last minibatch. It is `kept` unless it has a single sample, or
    `dropped` unless it is the client's only one (PFLlib).
    """
    augmentation: Augmentation = "none"
    """Random transformations of training images: crop after padding by 4 pixels, horizontal flip, rotation
    by up to 15 degrees (FedCAC's code). Other samples require `none`."""
    input_scale: InputScale = "normalised"
    """`normalised`: by the data set's mean and standard deviation. `symmetric`: -1 to 1. `unit`: 0 to 1, as
    torchvision reads images. `raw255`: 0 to 255 (the code of LGA and PLGA). `mnist`, `cifar10`,
    `cifar100`: by that data set's constants in released code, even for other images (SPFL's code; Fling
    for Tiny-ImageNet). Samples other than images require `normalised`; tokens are never scaled."""
    bn_stats: Literal["mixed", "local"] = "mixed"
    """Running statistics of batch norm: `mixed` like the weights of the same layer, or `local` to each
    client.
    """
    validation: Fraction = 0.0
    """Share of each client's training samples that replaces its test set in evaluations (for searches)."""
    eval_every: Count = 5
    """Rounds between evaluations; the last round is always evaluated."""
    metrics: tuple[str, ...] = ()
    """Metrics besides accuracy in the last evaluation, at the moment that the method reports; see
    `pfl metrics`."""
    patience: CountOrZero = 0
    """Early stopping: a run ends after this many consecutive evaluations without a new best accuracy; 0 means
    never. The accuracy is measured every `eval_every` rounds at the moment that the method reports, pooled
    over the clients, on held-out training samples. The last models are kept."""
    min_delta: Rate = 0.0
    """Percentage points by which an accuracy must exceed the best to count as a new best, with `patience`."""
    stop_share: ProperFraction = 0.2
    """Share of each client's training samples held out for `patience`; the clients do not train on them."""
    unseen: Fraction = 0.0
    """Share of the clients, at least one, that do not take part in training; drawn with the run's seed. After
    the last round, they are tested with the model that the method gives a new client, after adaptation, and
    after local training from scratch."""
    unseen_epochs: CountOrZero = 0
    """Local epochs of `unseen` clients: from scratch, and in those phases of the adaptation for which the
    method states neither epochs nor steps. 0 means `epochs`."""
    dtype: Literal["float32", "float64"] = "float32"
    """Data type of parameters and activations."""
    precision: Precision = "fp32"
    """Precision of the networks in training, adaptation and evaluation, on hardware that supports it. `fp32`:
    that of `dtype`. `tf32`: GPUs round the factors of products to TensorFloat-32. `bf16`: the extractor runs
    under bfloat16 autocast; weights, batch norm statistics, head, losses and optimiser keep their dtype. On a
    CPU, `bf16` pays off most in wide networks (spfl_cnn, cnn4, ResNets) and batches of at least 24 images (4
    with Intel AMX); without a C++ compiler, it slows the LeNets down.
    """
    observe: Literal["accuracy", "similarities"] = "accuracy"
    """`similarities`: also measure the similarity of the clients after the last round."""

    def participants(self, clients: int) -> int:
        """Number of clients sampled per round, out of ``clients``."""
        return max(1, whole_part(self.participation, clients))

    def lr_in(self, round: int) -> float:
        """The learning rate of a round, counted from 1.

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
        """The fields by name, ready for JSON."""
        return {**dataclasses.asdict(self), "metrics": list(self.metrics)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Config:
        """The configuration from a dictionary of `to_dict`, which may omit fields.

        Raises:
            InvalidInput: a key is not a field.
        """
        check_names("configuration", values, [f.name for f in dataclasses.fields(cls)])
        metrics = values.get("metrics")
        return cls(**{**values, "metrics": tuple(metrics)} if isinstance(metrics, list) else values)


CHECKPOINT = "checkpoint.pt"
"""Name of the file in `Execution.checkpoint_dir`."""

CHECKPOINT_EVERY = 10
"""Rounds between two checkpoints; there is always one after the last round."""


@dataclass(frozen=True)
class Execution:
    """How a simulation is executed. Results are unaffected up to rounding.

    >>> execution = Execution(device="cpu", backend="loop")
    >>> runs = pfl.simulate("fedavg", clients=4, rounds=2, epochs=1, execution=execution, progress=False)
    >>> runs[0].hardware.backend
    'loop'
    """

    device: str = "auto"
    """cpu, cuda, cuda:N or auto; auto means cuda if available."""
    backend: Literal["auto", "loop", "stacked"] = "auto"
    """loop, stacked or auto; auto means loop on a CPU and stacked on a GPU."""
    threads: int = 1
    """Threads of torch on a CPU. The fused kernels are single-threaded; use `workers` for more cores."""
    workers: int | None = None
    """Processes that share the clients of a round in the loop backend on a CPU; results are bit-identical for
    any number. By default one per `threads` cores that the process may use, or 1 if a GPU is visible or the
    system is not Linux."""
    moments: tuple[str, ...] = ()
    """Moments (`pfl.engine.method.Moment`) of the evaluations before the last one; () means all. The last
    evaluation always has all moments."""
    checkpoint_dir: str | None = None
    """Folder of the checkpoint. A simulation resumes from its own checkpoint there, even if the number of
    rounds has been increased."""
    code: str | None = None
    """Name of the code in checkpoints; by default that in a trial's key (`pfl.run.fingerprint.name_of`).
    Checkpoints of different code are rejected.
    """
    until: int | None = None
    """Write the checkpoint and pause after this round, which must have an evaluation; None means run to the
    end.
    """
    save: str | None = None
    """File for the final models, to be read with `pfl.load_models`."""
