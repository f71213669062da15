"""A short simulation whose numbers stand for what the code does.

A *probe* is a method with its choices on a network, on small made-up data in float64, for a few rounds in
which every warm-up is over. Numbers that trials of a search differ in are the probe's own, so that they share
one result.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pfl.config import Config, Execution
from pfl.methods import METHODS
from pfl.models import build
from pfl.validation import validated

if TYPE_CHECKING:
    from pfl.data.dataset import Dataset
    from pfl.data.partition import Partition
    from pfl.engine.server import Server
    from pfl.hyper import Hyperparameter
    from pfl.models import Shape
    from pfl.models._network import Network

Values = dict[str, Any]
"""A probe's results by name: numbers, and the name of the moment that is reported."""

ROUNDS = 4
TESTS = 3  # samples of each client
EXPLODED = 100.0
"""From this loss on, rounding errors are amplified too much."""


@dataclass(frozen=True)
class Scale:
    """The size of a probe.

    Attributes:
        sizes: training samples of each client.
        rates: learning rates to try in turn, the next one if training explodes.
    """

    sizes: tuple[int, ...]
    batch_size: int
    epochs: int
    rates: tuple[float, ...]


SMALL_NETWORK = Scale((9, 4, 7, 5, 3, 6), 4, 2, (0.2, 1e-2, 1e-4, 1e-6))
LARGE_NETWORK = Scale((5, 3, 4, 4, 3, 3), 4, 1, (1e-3, 1e-5, 1e-7))
LARGE = 1_000_000  # parameters

ON = {"momentum": 0.5, "weight_decay": 0.01, "validation": 0.3, "lr_warmup": 1}
"""The probe's values of options that are on in the trial."""


def probe(config: Config, shape: Shape, classes: int) -> Values:
    """The results of a short simulation with the choices of ``config`` (validated)."""
    values: Values = {}
    scale = LARGE_NETWORK if _parameters(config.model, shape, classes) > LARGE else SMALL_NETWORK
    for rate in scale.rates:
        try:
            values = _simulated(_reduced(config, scale, rate), scale, shape, classes)
        except Exception as error:  # from a plugin's method, whose trials fail likewise
            values = {"error": type(error).__name__}
            break
        if all(value < EXPLODED for name, value in values.items() if " loss" in name):
            break
    finite = {
        name: value if isinstance(value, str) else float(f"{value:.10g}")
        for name, value in values.items()
        if isinstance(value, str) or math.isfinite(value)
    }
    return finite | {f"default {name}": value for name, value in _defaults(config.method).items()}


def is_choice(declared: Hyperparameter, default: Any) -> bool:
    """Whether it is one of a few values rather than a number."""
    return declared.choices is not None or isinstance(default, bool)


def _parameters(model: str, shape: Shape, classes: int) -> int:
    """The number of a network's parameters; on the meta device nothing is computed."""
    import torch

    with torch.device("meta"):
        network = build(model, shape, classes)
    return sum(parameter.numel() for parameter in network.parameters())


def _reduced(config: Config, scale: Scale, rate: float) -> Config:
    """``config`` with the probe's numbers. A 0 stays 0, since it may turn something off."""
    method = METHODS[config.method]
    own = dict(config.hyperparameters)
    for name, declared in method.declarations().items():
        default = method.__dataclass_fields__[name].default
        if own[name] and not is_choice(declared, default):
            usual = default or _some(declared, default)
            own[name] = usual if declared.probe is None else declared.probe
    on: dict[str, Any] = {name: number for name, number in ON.items() if getattr(config, name)}
    if config.lr_schedule == "step":
        on |= {"lr_step": 1, "lr_gamma": 0.5}
    return dataclasses.replace(
        config,
        rounds=ROUNDS,
        participation=2 / 3,
        epochs=scale.epochs,
        batch_size=scale.batch_size,
        eval_every=ROUNDS // 2,
        lr=rate,
        hyperparameters=own,
        dtype="float64",
        precision=Config.precision,
        **on,
    )


def _some(declared: Hyperparameter, default: float) -> float:
    """A number in the domain of a hyperparameter whose default is 0."""
    usual = type(default)(1) if isinstance(default, int) else 0.1
    return usual if declared.high is None or usual <= declared.high else type(default)(declared.high)


def _defaults(method: str) -> dict[str, float]:
    """The default numbers, which a trial's key leaves out."""
    config = validated(Config(method=method))
    fields = {**vars(config), **config.hyperparameters}
    return {name: value for name, value in fields.items() if type(value) in (int, float)}


def _simulated(config: Config, scale: Scale, shape: Shape, classes: int) -> Values:
    from pfl.simulation import simulate

    last: dict[str, float] = {}

    def seen(server: Server, net: Network) -> dict[str, Any] | None:
        if server.round < server.rounds:
            return None
        squares = [server.bank[name].flatten(1).square().sum(1) for name in server.bank.stacks]
        last["models"] = sum((sum(squares) * (server.everybody + 1)).tolist())
        if config.observe == "accuracy":
            return None
        from pfl.analysis.measures import similarities

        return similarities(server, net)

    dataset, partition = _made_up(scale.sizes, shape, classes)
    execution = Execution(device="cpu", backend="loop")
    metrics = simulate(config, dataset, partition, (0,), execution, measure=seen)[0].metrics
    first, end = metrics.rounds[0], metrics.rounds[-1]
    accuracy = metrics.reached()
    values: Values = {
        "headline": metrics.headline,
        "bytes down": metrics.bytes_down,
        "bytes up": metrics.bytes_up,
        "train loss at first": first.train_loss,
        "train loss": end.train_loss,
        "best accuracy": accuracy.best,
        "best round": accuracy.best_round,
        "clients": sum(k * (one.accuracy or 0.0) for k, one in enumerate(metrics.per_client, 1)),
        **last,
    }
    for moment in metrics.moments:
        values[f"{moment} loss at first"] = first.moments[moment].loss
        values |= {f"{moment} {name}": value for name, value in vars(end.moments[moment]).items()}
        for group, accuracies in end.groups.items():
            values |= {
                f"{moment} {name} of {group}": value for name, value in vars(accuracies[moment]).items()
            }
    for measure, matrix in (metrics.similarities or {}).items():
        values[f"similarity {measure}"] = sum(
            (place + 1) * value for place, value in enumerate(value for row in matrix for value in row)
        )
    return values


def _made_up(sizes: Sequence[int], shape: Shape, classes: int) -> tuple[Dataset, Partition]:
    """Noisy images of a pattern for each of at most four classes, two of which a client has."""
    import numpy as np

    from pfl.data.dataset import Dataset
    from pfl.data.partition import Partition
    from pfl.rng import generator

    stream = generator(0, "behaviour")
    used = np.linspace(0, classes - 1, min(classes, 4)).astype(np.int64)
    each = [size + TESTS for size in sizes]
    place = np.concatenate([(k + np.arange(n) % 3 % 2) % len(used) for k, n in enumerate(each)])
    patterns = stream.integers(0, 120, (len(used), *shape))
    images = (patterns[place] + stream.integers(0, 136, (sum(each), *shape))).astype(np.uint8)
    parts = np.split(np.arange(sum(each)), np.cumsum(each)[:-1])
    dataset = Dataset(
        name="made up",
        images=images,
        labels=used[place],
        classes=tuple(map(str, range(classes))),
        n_train=sum(each),
        checksum="",
        mean=(0.5,) * shape[0],
        std=(0.25,) * shape[0],
        source={},
    )
    train, test = (tuple(part[s] for part in parts) for s in (slice(None, -TESTS), slice(-TESTS, None)))
    return dataset, Partition("file:probe.json", train, test, data_checksum="")
