"""What a simulation computes (`Config`) and how it is carried out (`Execution`)."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from pfl.errors import InvalidInput, unknown_name
from pfl.rounding import whole_part

LARGEST = {float: 1e18, int: 10**9}
"""What a number may be, a real one and a whole one: the product of two is in float32, and in an int64."""
_RATES: dict[str, tuple[Callable[[float], bool], str]] = {
    "participation": (lambda share: 0 < share <= 1, "a number in (0, 1]"),
    "lr": (lambda rate: 0 < rate <= LARGEST[float], f"a number above 0, up to {LARGEST[float]:g}"),
    "momentum": (lambda share: 0 <= share < 1, "a number in [0, 1)"),
    "weight_decay": (
        lambda rate: 0 <= rate <= LARGEST[float],
        f"a number of at least 0, up to {LARGEST[float]:g}",
    ),
    "validation": (lambda share: 0 <= share < 1, "a number in [0, 1)"),
}
BatchOrder = Literal["shuffled", "fixed", "class_stream"]
Augmentation = Literal["none", "crop_flip", "crop_flip_rotate", "flip_rotate"]
InputScale = Literal["normalised", "symmetric", "unit", "raw255"]
BNStats = Literal["mixed", "local"]
DType = Literal["float32", "float64"]
Precision = Literal["fp32", "tf32", "bf16"]
Observed = Literal["accuracy", "similarities"]
_CHOICES = {
    "batch_order": BatchOrder,
    "augmentation": Augmentation,
    "input_scale": InputScale,
    "bn_stats": BNStats,
    "dtype": DType,
    "precision": Precision,
    "observe": Observed,
}
DEVICES = r"auto|cpu|cuda(:(0|[1-9][0-9]?))?"
MOST_THREADS = 1024


@dataclass(frozen=True)
class Config:
    """Everything that decides a simulation's numbers, except its data, its partition and its seed.

    `Config.validated` checks every field before any compute is spent.
    """

    method: str = "fedavg"
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    """The method's own; those left out take the method's defaults."""
    model: str = "cnn_digits"
    participation: float = 0.5
    """Share of the clients that take part in a round; at least one does."""
    rounds: int = 30
    epochs: int = 2
    """Local epochs a round."""
    batch_size: int = 16
    lr: float = 0.05
    momentum: float = 0.0
    weight_decay: float = 0.0
    batch_order: BatchOrder = "shuffled"
    """Minibatches drawn anew in every epoch; cut once from the client's samples as the partition stores them,
    the same in every epoch and round (FL-bench's release); or one endless pass over the samples class by
    class, taken up by a local training where the last one left it (the asynchronous code of LGA and PLGA)."""
    augmentation: Augmentation = "none"
    """What happens to training images at random: a crop after padding by 4 pixels, a horizontal flip, a
    rotation by up to 15 degrees (`pfl.engine.augmentation`; FedCAC's code)."""
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

    def validated(self) -> Config:
        """This configuration with the method's defaults filled in.

        Raises:
            InvalidInput: a name is unknown or a value is outside its range.
        """
        from pfl.methods import METHODS
        from pfl.models import MODELS

        for name in ("rounds", "epochs", "batch_size", "eval_every"):
            value = getattr(self, name)
            some = type(value) is int and 1 <= value <= LARGEST[int]
            _check(name, value, some, f"a whole number of at least 1, up to {LARGEST[int]:g}")
        for name, (holds, accepted) in _RATES.items():
            value = getattr(self, name)
            _check(name, value, type(value) in (int, float) and holds(value), accepted)
        for name, kind in _CHOICES.items():
            value, choices = getattr(self, name), get_args(kind)
            _check(name, value, value in choices, " or ".join(choices))
        lower = self.precision != "fp32"
        _check("precision", self.precision, not lower or self.dtype == "float32", "fp32 beside dtype float64")
        if self.model not in MODELS:  # the name only: importing a network imports torch
            raise unknown_name("model", self.model, MODELS)
        method = METHODS[self.method].from_dict(self.hyperparameters)
        # 1 and 1.0 must have one key
        rates: dict[str, Any] = {name: float(getattr(self, name)) for name in _RATES}
        return dataclasses.replace(self, hyperparameters=method.hyperparameters(), **rates)

    def participants(self, clients: int) -> int:
        """How many of so many clients take part in a round."""
        return max(1, whole_part(self.participation, clients))

    def warnings(self) -> tuple[str, ...]:
        """One line for each way in which the method merely degenerates under this configuration."""
        from pfl.methods import METHODS

        return METHODS[self.method].from_dict(self.hyperparameters).warnings(self)

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


def non_defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    """The method, and what is not at its default, of `Config.to_dict` of a validated configuration.

    It stays the same when an option is added.
    """
    usual = Config(method=config["method"]).validated().to_dict()
    found = {name: value for name, value in config.items() if value != usual[name]}
    own = usual["hyperparameters"]
    found["hyperparameters"] = {
        name: value for name, value in config["hyperparameters"].items() if value != own[name]
    }
    return {"method": config["method"], **found}


def stackable(configs: Sequence[Config]) -> bool:
    """Whether the clients of all validated ``configs`` can be in one stack: whether these differ in nothing
    but the learning rate and real-valued hyperparameters.
    """
    from pfl.methods import METHODS

    def rest(config: Config) -> Config:
        numbers = METHODS[config.method].from_dict(config.hyperparameters).numbers()
        kept = {name: value for name, value in config.hyperparameters.items() if name not in numbers}
        return dataclasses.replace(config, lr=1.0, hyperparameters=kept)

    return all(rest(config) == rest(configs[0]) for config in configs)


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
    """Folder for the checkpoint; a simulation that finds its own there goes on from it."""
    code: str | None = None
    """Names the code that checkpoints are of (`pfl.behaviour`); by default a digest of its text does. A
    checkpoint of other code is refused."""
    save: str | None = None
    """File for the final models (weights only): for each seed, tensors by name, (clients, *shape), or
    (1, *shape) where all clients share one."""

    def validate(self) -> None:
        """Check what can be checked without torch.

        Raises:
            InvalidInput: a value is outside its range.
        """
        backends = ("auto", "loop", "stacked")
        _check("backend", self.backend, self.backend in backends, "loop, stacked or auto")
        _check(
            "device", self.device, re.fullmatch(DEVICES, self.device) is not None, "cpu, cuda, cuda:N or auto"
        )
        some = type(self.threads) is int and 1 <= self.threads <= MOST_THREADS
        _check("threads", self.threads, some, f"a whole number in [1, {MOST_THREADS}]")


def check_seeds(seeds: Sequence[int]) -> None:
    """Check the seeds of a simulation.

    Raises:
        InvalidInput: there is none, one is there twice, or one is no whole number of at least 0.
    """
    holds = all(type(seed) is int and seed >= 0 for seed in seeds) and 0 < len(set(seeds)) == len(seeds)
    _check("seeds", list(seeds), holds, "one or more different whole numbers of at least 0")


def _check(parameter: str, value: object, holds: bool, accepted: str) -> None:
    if not holds:
        raise InvalidInput(parameter, value, accepted)
