"""The battery: short simulations that detect edits which change results.

`pfl behaviours` runs it for the components whose code has changed (`pfl.run.fingerprint`). Code that agrees
with the recorded results keeps its name; other code gets a new one.
"""

from __future__ import annotations

import math
import os
import signal
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, Literal
from unittest.mock import patch

import numpy as np

from pfl.core.config import Config, Execution, Precision
from pfl.core.cores import cores
from pfl.core.errors import InvalidInput
from pfl.methods import METHODS
from pfl.run.fingerprint import SHARED
from pfl.run.validation import validated
from pfl.testing.cases import Case, federation

if TYPE_CHECKING:
    from pfl.data.dataset import Dataset
    from pfl.data.partition import Division
    from pfl.engine.metrics import Accuracy, Metrics

Values = dict[str, Any]
"""The results of a case by name: numbers, lists of numbers over the evaluations or clients, and names."""

TOLERANCE = 1e-7
"""Relative and absolute, in float64. Rounding is far below it, and relevant changes are far above."""

UNTIL = 2
"""The round after which a resumed simulation pauses."""


@dataclass(frozen=True)
class Way:
    """A way to compute a case.

    Attributes:
        kernels: use our compiled kernels if the machine has a compiler.
        device: use the emulated device.
        resumed: pause, and resume from a checkpoint.
        precision: precision of float32; None means float64.
    """

    backend: Literal["loop", "stacked"] = "loop"
    kernels: bool = True
    device: bool = False
    resumed: bool = False
    precision: Precision | None = None


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
    """Absolute tolerance of losses in less than float64.

    Batch norm over few pixels makes residual networks sensitive: a rounding error that flips one ReLU changes
    a gradient by up to one per cent, in torch's operations as in the kernels.
    """
    return 2e-2 if way.precision == "bf16" or case.model.startswith(("resnet", "mobilenet")) else 1e-5


@dataclass(frozen=True)
class Difference:
    """A value that differs from the expected one.

    Attributes:
        value: name of the value.
        way: how it was computed.
        expected: the recorded value; for a further way of a case, that of its first way.
        tolerance: the accepted difference of two numbers.
    """

    value: str
    way: str
    expected: Any
    now: Any
    tolerance: float = TOLERANCE

    def __str__(self) -> str:
        parts = [(self.expected, self.now)]
        if isinstance(self.expected, list) and isinstance(self.now, list):
            if len(self.expected) != len(self.now):
                return f"{self.value} ({self.way}): {len(self.expected)} -> {len(self.now)} values"
            pairs = zip(self.expected, self.now, strict=True)
            parts = [pair for pair in pairs if not close(*pair, self.tolerance)]
        shown = ", ".join(f"{expected} -> {now}" for expected, now in parts[:2])
        return f"{self.value} ({self.way}): {shown}{', ...' if len(parts) > 2 else ''}"


@dataclass(frozen=True)
class Answer:
    """The current results of a case.

    Attributes:
        values: the results of its first way, and ``asked``, the method's hyperparameters.
        moved: differences from the recorded results; None if there are none recorded.
        disagreeing: differences of further ways from the first, which are bugs.
        new: whether ``values`` should be recorded.
    """

    case: Case
    values: Values
    moved: Sequence[Difference] | None
    disagreeing: Sequence[Difference]
    new: bool


def answer(case: Case, recorded: Values | None) -> Answer:
    """Run ``case`` in all its ways. If it raises, the error is its only value.

    If the results were recorded with other hyperparameters, these are run and compared.
    """
    first, *others = case.ways
    values = _values(case, first) or {}
    disagreeing = []
    for way in others:
        now = _values(case, way)
        disagreeing += [] if now is None else differences(case, values, now, way)
    if recorded is None:
        return Answer(case, values, None, disagreeing, True)
    asked = recorded.get("asked", {})
    same = asked == case.own
    then = case if same else replace(case, options={**case.options, "hyperparameters": asked})
    moved = differences(then, recorded, values if same else _values(then, first) or {}, first)
    return Answer(case, values, moved, disagreeing, bool(moved) or not same)


def answers(chosen: Sequence[Case], recorded: Mapping[str, Values]) -> Iterator[Answer]:
    """Yield the answers to ``chosen`` as they complete, from one process per core.

    Raises:
        InvalidInput: a process crashed, for example in a kernel.
    """
    os.environ["OMP_NUM_THREADS"] = "1"  # the processes share the cores
    with ProcessPoolExecutor(cores(), get_context("spawn"), _begin_worker) as pool:
        pending = [pool.submit(answer, case, recorded.get(case.key)) for case in chosen]
        try:
            for done in as_completed(pending):
                yield done.result()
        except BrokenProcessPool:
            accepted = "code that does not crash its process (or more memory)"
            raise InvalidInput("battery", "a crashed process", accepted) from None
        finally:
            pool.shutdown(cancel_futures=True)


def _begin_worker() -> None:
    """Ignore Ctrl-C, and exit with the parent process even if it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    command = parent_process()
    assert command is not None

    def follow() -> None:
        command.join()
        os._exit(1)

    Thread(target=follow, daemon=True).start()


def concerned(unknown: Collection[str], everything: Sequence[Case]) -> list[Case]:
    """The cases that an edit of the components ``unknown`` may affect."""
    if {*SHARED} & {*unknown}:
        return list(everything)
    return [case for case in everything if case.subject in unknown or f"method {case.method}" in unknown]


def subjects(case: Case, unknown: Collection[str]) -> list[str]:
    """The methods and networks whose results have changed if those of ``case`` have.

    They are its method and network if only these were edited; otherwise the subject of the case. For a case
    of the engine, they are all methods except those of plugins, which have their own cases.
    """
    edited = [name for name in (f"method {case.method}", f"network {case.model}") if name in unknown]
    if edited and not {*SHARED} & {*unknown}:
        return edited
    if case.subject:
        return [case.subject]
    return [f"method {name}" for name in METHODS if not METHODS.plugin(name)]


def kernels_are_usable() -> bool:
    """Whether this machine compiles our kernels and prefers them."""
    import torch

    from pfl.kernels import conv_block

    known = torch.backends.cpu.get_cpu_capability() in conv_block.INSTRUCTIONS
    return known and conv_block._library(torch.float32) is not None


def _values(case: Case, way: str) -> Values | None:
    try:
        return run(case, way)
    except Exception as error:  # whatever a plugin or a faulty edit raises
        return {"error": f"{type(error).__name__}: {error}"}


def run(case: Case, way: str) -> Values | None:
    """The results of ``case`` computed in a ``way``; None if this machine does not support it."""
    import torch

    from pfl.engine.device import computes_in
    from pfl.engine.model_file import read_models
    from pfl.run.simulate import simulate_configs
    from pfl.testing.emulated import emulated_gpu

    how = WAYS[way]
    if how.precision and not computes_in(how.precision, torch.device("cpu")):
        return None
    configs = case.configs()
    if how.precision:
        configs = [replace(config, dtype="float32", precision=how.precision) for config in configs]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        dataset, division = _data(case, folder)
        execution = Execution(device="cpu", backend=how.backend)
        if how.device:
            stack.enter_context(emulated_gpu())
            execution = replace(execution, device="meta")
        if not how.kernels:
            stack.enter_context(without_kernels())
        if how.resumed:
            execution = replace(execution, checkpoint_dir=str(folder), code="battery")
            until = configs[0].eval_every * (UNTIL // configs[0].eval_every or 1)
            if until < configs[0].rounds:
                pause = replace(execution, until=until)
                simulate_configs(configs, dataset, division, case.seeds, pause)
        if len(configs) == 1:
            execution = replace(execution, save=str(folder / "models.pt"))
        results = simulate_configs(configs, dataset, division, case.seeds, execution)
        values: Values = {}
        for number, of_config in enumerate(results):
            for result in of_config:
                whose = f"{number}, seed {result.seed}: " if len(results) * len(of_config) > 1 else ""
                values |= {whose + name: value for name, value in values_of(result.metrics).items()}
        if execution.save:
            models = read_models(Path(execution.save))["seeds"].values()
            values["models"] = [_digest(of_seed["tensors"], len(of_seed["train"])) for of_seed in models]
    if case.own:
        values["asked"] = dict(case.own)
    if case.defaults:
        values |= {f"default {name}": value for name, value in _defaults(case).items()}
    return {name: _rounded(value) for name, value in values.items()}


def differences(case: Case, expected: Values, now: Values, way: str) -> list[Difference]:
    """What does not agree. In less than float64 only losses are compared, as accuracies change in steps.

    The default of a new hyperparameter is not a difference, nor is that of a removed one.
    """
    precision = WAYS[way].precision
    tolerance = lower_tolerance(case, WAYS[way]) if precision else TOLERANCE
    names = dict.fromkeys([*expected, *now])
    compared = [
        name
        for name in names
        if (not precision or "loss" in name or name == "error")
        and name != "asked"
        and (not name.startswith("default ") or (name in expected and name in now))
    ]
    return [
        Difference(name, way, expected.get(name), now.get(name), tolerance)
        for name in compared
        if not close(expected.get(name), now.get(name), tolerance)
    ]


def values_of(metrics: Metrics) -> Values:
    """All numbers of a result."""
    best = metrics.reached()
    values: Values = {
        "headline": metrics.headline,
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
    if metrics.stopped_at is not None:
        values["stopped"] = metrics.stopped_at
    for moment in metrics.moments:
        scores = [entry.moments[moment] for entry in metrics.rounds if moment in entry.moments]
        values |= {f"{moment} {name}": value for name, value in _columns(scores).items()}
        for group in metrics.groups:
            scores = [entry.groups[group][moment] for entry in metrics.rounds if group in entry.groups]
            values |= {f"{moment} {name} of {group}": value for name, value in _columns(scores).items()}
    for measure, matrix in (metrics.similarities or {}).items():
        values[f"similarity {measure}"] = [_weighted(row) for row in matrix]
    for name, metric in metrics.client_metrics.items():
        values |= {f"metric {name}": metric.pooled, f"metric {name} by client": metric.client_mean}
        values |= {f"metric {name} of clients": metric.per_client} if metric.per_client else {}
    if metrics.unseen:
        scores = [metrics.unseen.received, metrics.unseen.adapted, metrics.unseen.scratch]
        values |= {f"unseen {name}": value for name, value in _columns(scores).items()}
        values["unseen clients"] = [client.client for client in metrics.unseen.per_client]
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


def _data(case: Case, folder: Path) -> tuple[Dataset, Division]:
    dataset, partition = federation(case.data)
    if case.data.mapped:
        file = folder / "images.bin"
        dataset.images.tofile(file)
        images = np.memmap(file, dataset.images.dtype, "c", shape=dataset.images.shape)
        dataset = replace(dataset, images=images)
    if not case.divided:
        return dataset, partition
    # Other seeds rotate the training samples among the clients, and thus the sizes.
    turned = {
        seed: replace(
            partition,
            train=tuple(partition.train[(k + turn) % partition.clients] for k in range(partition.clients)),
        )
        for turn, seed in enumerate(case.seeds)
    }
    return dataset, turned


def _columns(scores: Sequence[Accuracy]) -> Values:
    """The values of each average, one per evaluation."""
    return {name: [vars(score)[name] for score in scores] for name in vars(scores[0])}


def _digest(models: Mapping[str, Any], clients: int) -> float:
    """A sum of all clients' tensors in which no two elements have the same weight."""
    import torch

    total = 0.0
    for place, (_, stack) in enumerate(sorted(models.items())):
        rows = stack.double().flatten(1)
        weights = torch.cos(torch.arange(rows.shape[1], dtype=torch.float64) + place)
        each = (rows @ weights).expand(clients)  # a single row is shared by all clients
        total += float(torch.cos(0.3 * torch.arange(clients, dtype=torch.float64)) @ each)
    return total


def _weighted(row: Sequence[float]) -> float:
    return sum((place + 1) * value for place, value in enumerate(row))


def _defaults(case: Case) -> Values:
    """The defaults of a method's hyperparameters, or of the configuration, which a trial's key leaves out."""
    usual = validated(Config(method=case.method))
    if "hyperparameters" in case.options:
        return dict(usual.hyperparameters)
    return {name: value for name, value in vars(usual).items() if name not in ("method", "hyperparameters")}


def _rounded(value: Any) -> Any:
    """``value`` as recorded: numbers with nine digits, and those that are not finite as text."""
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.9g}") if math.isfinite(value) else str(value)
    return value


def close(recorded: Any, now: Any, tolerance: float) -> bool:
    """Whether two values of a result agree within ``tolerance``, absolute or relative."""
    if isinstance(recorded, list) and isinstance(now, list):
        return len(recorded) == len(now) and all(map(lambda a, b: close(a, b, tolerance), recorded, now))
    numbers = (int, float)
    if isinstance(recorded, numbers) and isinstance(now, numbers) and not isinstance(recorded, bool):
        return math.isclose(recorded, now, rel_tol=tolerance, abs_tol=tolerance)
    return bool(recorded == now)
