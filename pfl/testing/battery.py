"""The battery: short simulations whose numbers show whether an edit moved any.

`pfl behaviours` runs it for the components whose code has changed (`pfl.fingerprint`). What agrees with the
recorded numbers keeps its name; what does not gets a new one.
"""

from __future__ import annotations

import dataclasses
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from pfl.config import Config, Execution
from pfl.testing.cases import Case, federation
from pfl.validation import validated

if TYPE_CHECKING:
    from pfl.data.dataset import Dataset
    from pfl.data.partition import Division
    from pfl.engine.metrics import Accuracy, Metrics

Values = dict[str, Any]
"""The results of a case by name: numbers, lists of numbers over the evaluations or clients, and names."""

TOLERANCE = 1e-7
"""Relative and absolute, in float64. Rounding is far below it, an edit that matters far above."""

UNTIL = 2
"""The round after which a simulation pauses that is resumed."""


@dataclass(frozen=True)
class Way:
    """How a case is computed.

    Attributes:
        kernels: with our compiled kernels, where the machine has a compiler.
        device: on the emulated device.
        resumed: pauses and goes on from a checkpoint.
        precision: of float32; None is float64.
    """

    backend: str = "loop"
    kernels: bool = True
    device: bool = False
    resumed: bool = False
    precision: str | None = None


WAYS = {
    "loop": Way(),
    "torch": Way(kernels=False),
    "stacked": Way("stacked"),
    "device": Way("stacked", device=True),
    "resumed": Way(resumed=True),
    "float32": Way(precision="fp32"),
    "float32 torch": Way(kernels=False, precision="fp32"),
    "float32 stacked": Way("stacked", precision="fp32"),
    "bfloat16": Way(precision="bf16"),
}


def lower_tolerance(case: Case, way: Way) -> float:
    """Of losses in less than float64, absolute.

    Batch norm over few pixels makes residual networks sensitive: a rounding error that decides one ReLU
    otherwise moves a gradient by up to a per cent, in torch's operations as in the kernels.
    """
    return 2e-2 if way.precision == "bf16" or case.model.startswith(("resnet", "mobilenet")) else 1e-5


@dataclass(frozen=True)
class Moved:
    """A value that is not the recorded one."""

    value: str
    way: str
    recorded: Any
    now: Any


def run(case: Case, way: str) -> Values | None:
    """The results of ``case`` computed in a way; None where this machine cannot."""
    import torch

    from pfl.engine.device import computes_in
    from pfl.simulation import simulate_together

    how = WAYS[way]
    if how.precision and not computes_in(how.precision, torch.device("cpu")):
        return None
    configs = case.configs()
    if how.precision:
        configs = [
            dataclasses.replace(config, dtype="float32", precision=how.precision) for config in configs
        ]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        dataset, division = _data(case, folder)
        execution = Execution(device="cpu", backend=how.backend)
        if how.device:
            stack.enter_context(_emulated())
            execution = dataclasses.replace(execution, device="meta")
        if not how.kernels:
            stack.enter_context(without_kernels())
        if how.resumed:
            execution = dataclasses.replace(execution, checkpoint_dir=str(folder), code="battery")
            until = configs[0].eval_every * (UNTIL // configs[0].eval_every or 1)
            if until < configs[0].rounds:
                pause = dataclasses.replace(execution, until=until)
                simulate_together(configs, dataset, division, case.seeds, pause)
        if len(configs) == 1:
            execution = dataclasses.replace(execution, save=str(folder / "models.pt"))
        results = simulate_together(configs, dataset, division, case.seeds, execution)
        values: Values = {}
        for number, of_config in enumerate(results):
            for result in of_config:
                whose = f"{number}, seed {result.seed}: " if len(results) * len(of_config) > 1 else ""
                values |= {whose + name: value for name, value in values_of(result.metrics).items()}
        if execution.save:
            models = torch.load(execution.save, weights_only=True)
            values["models"] = [_digest(of_seed) for of_seed in models.values()]
    if case.defaults:
        values |= {f"default {name}": value for name, value in _defaults(configs[0]).items()}
    return {name: _rounded(value) for name, value in values.items()}


def differences(case: Case, recorded: Mapping[str, Any], now: Mapping[str, Any], way: str) -> list[Moved]:
    """What does not agree. In less than float64 only losses are compared, as an accuracy moves in steps."""
    precision = WAYS[way].precision
    tolerance = lower_tolerance(case, WAYS[way]) if precision else TOLERANCE
    names = [name for name in recorded if not precision or "loss" in name]
    moved = [name for name in names if not _close(recorded[name], now.get(name), tolerance)]
    moved += [] if precision else [name for name in now if name not in recorded]
    return [Moved(name, way, recorded.get(name), now.get(name)) for name in moved]


def values_of(metrics: Metrics) -> Values:
    """All numbers of a result."""
    best = metrics.reached()
    values: Values = {
        "headline": metrics.headline,
        "rounds": [entry.round for entry in metrics.rounds],
        "train loss": [entry.train_loss for entry in metrics.rounds],
        "bytes down": [entry.bytes_down for entry in metrics.rounds] + [metrics.bytes_down],
        "bytes up": [entry.bytes_up for entry in metrics.rounds] + [metrics.bytes_up],
        "best": [best.best, best.best_round],
        "clients": [client.accuracy for client in metrics.per_client],
        "samples": [
            _weighted([client.train for client in metrics.per_client]),
            _weighted([client.test for client in metrics.per_client]),
        ],
    }
    if metrics.diverged_at is not None:
        values["diverged"] = metrics.diverged_at
    for moment in metrics.moments:
        scores = [entry.moments[moment] for entry in metrics.rounds if moment in entry.moments]
        values |= {f"{moment} {name}": value for name, value in _columns(scores).items()}
        for group in metrics.groups:
            scores = [entry.groups[group][moment] for entry in metrics.rounds if group in entry.groups]
            values |= {f"{moment} {name} of {group}": value for name, value in _columns(scores).items()}
    for measure, matrix in (metrics.similarities or {}).items():
        values[f"similarity {measure}"] = [_weighted(row) for row in matrix]
    return values


@contextmanager
def without_kernels() -> Iterator[None]:
    """A context without our compiled kernels, as on a machine without a compiler."""
    from pfl.kernels import conv_block, im2col, read_rows

    with (
        patch.object(conv_block, "INSTRUCTIONS", ()),
        patch.object(im2col, "_library", lambda: None),
        patch.object(read_rows, "compiled", lambda _: None),
    ):
        yield


@contextmanager
def _emulated() -> Iterator[None]:
    """A context with the device "meta", on which steps are recorded as on a GPU."""
    from pfl.testing.emulated import emulated

    with emulated() as device, patch("pfl.engine.device.captures_on", lambda _: lambda: device.capture):
        yield


def _data(case: Case, folder: Path) -> tuple[Dataset, Division]:
    dataset, partition = federation(case.data)
    if case.data.mapped:
        dataset = dataclasses.replace(dataset, images=_mapped(dataset, folder / "images.bin"))
    if not case.divided:
        return dataset, partition
    # Other seeds have the clients' samples in another order, and other sizes with them.
    turned = {
        seed: dataclasses.replace(
            partition,
            train=tuple(partition.train[(k + turn) % partition.clients] for k in range(partition.clients)),
        )
        for turn, seed in enumerate(case.seeds)
    }
    return dataset, turned


def _mapped(dataset: Dataset, file: Path) -> Any:
    import numpy as np

    dataset.images.tofile(file)
    return np.memmap(file, np.uint8, "c", shape=dataset.images.shape)


def _columns(scores: Sequence[Accuracy]) -> Values:
    """Each average over the evaluations."""
    return {name: [vars(score)[name] for score in scores] for name in vars(scores[0])}


def _digest(models: Mapping[str, Any]) -> float:
    """A sum of all clients' tensors in which no two elements have the same weight."""
    import torch

    total = 0.0
    for place, (_, stack) in enumerate(sorted(models.items())):
        rows = stack.double().flatten(1)
        weights = torch.cos(torch.arange(rows.shape[1], dtype=torch.float64) + place)
        clients = torch.cos(0.3 * torch.arange(len(rows), dtype=torch.float64))
        total += float(clients @ (rows @ weights))
    return total


def _weighted(row: Sequence[float]) -> float:
    return sum((place + 1) * value for place, value in enumerate(row))


def _defaults(config: Config) -> Values:
    """The defaults of a method's hyperparameters, or of the configuration, which a trial's key leaves out."""
    usual = validated(Config(method=config.method))
    own = dict(usual.hyperparameters)
    return (
        own
        if own or config.method != Config.method
        else {name: value for name, value in vars(usual).items() if name not in ("method", "hyperparameters")}
    )


def _rounded(value: Any) -> Any:
    """``value`` with ten digits of each number, as it is recorded; one that is not finite as a word."""
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.10g}") if math.isfinite(value) else str(value)
    return value


def _close(recorded: Any, now: Any, tolerance: float) -> bool:
    if isinstance(recorded, list) and isinstance(now, list):
        return len(recorded) == len(now) and all(map(lambda a, b: _close(a, b, tolerance), recorded, now))
    numbers = (int, float)
    if isinstance(recorded, numbers) and isinstance(now, numbers) and not isinstance(recorded, bool):
        return math.isclose(recorded, now, rel_tol=tolerance, abs_tol=tolerance)
    return bool(recorded == now)
