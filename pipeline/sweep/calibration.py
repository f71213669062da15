"""How long this machine takes for a method with a network: measured once, kept in the user's cache.

A few rounds of made-up images are enough; what they took is scaled to a table's schedule and sizes.
"""

from __future__ import annotations

import dataclasses
import json
import math
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from pfl.config import Config
from pfl.data.datasets import DATASETS
from pfl.errors import InvalidInput
from pfl.files import write_json

if TYPE_CHECKING:
    import torch

    from pfl.data.dataset import Dataset
    from pfl.data.definition import Definition
    from pfl.engine.simulation import Simulation
    from pfl.models import Shape
    from pipeline.spec.cells import Cell

CLIENTS = 2
"""In a measurement on a CPU, which trains them one after another; a GPU gets all participants at once."""

TEST_SAMPLES = 64
"""Of each client."""

LARGEST_BATCH = 1024
"""A full batch is asked for by any large number."""

Images = tuple["Shape", int]
"""Shape and number of classes of a data set."""


@dataclass(frozen=True)
class Speed:
    """Seconds that a method with a network takes on one core, or on one GPU.

    Attributes:
        sample: of local training in a round, a training sample of a participant, all epochs together.
        client: of local training in a round, a participant of a method that takes a number of steps.
        server: of the server, a round.
        test: of an evaluation, a test sample, all moments together.
    """

    sample: float
    client: float
    server: float
    test: float

    def seconds(self, config: Config, sizes: Sizes) -> float:
        """Of a whole simulation."""
        mean = sizes.train / sizes.clients
        a_round = config.participants(sizes.clients) * (self.client + self.sample * mean) + self.server
        evaluations = math.ceil(config.rounds / config.eval_every)
        return config.rounds * a_round + evaluations * self.test * sizes.test


@dataclass(frozen=True)
class Sizes:
    """Of a divided data set: clients, and the training and test samples of all of them together."""

    clients: int
    train: int
    test: int


@dataclass(frozen=True)
class _Machine:
    """What has been measured on one machine: by `_speed_key` and by `_sizes_key`."""

    speeds: dict[str, Speed] = field(default_factory=dict)
    sizes: dict[str, Sizes | None] = field(default_factory=dict)


_MACHINES = TypeAdapter(dict[str, _Machine])
"""By the name of the machine."""


class Calibration:
    """What has been measured on this machine, in ``calibration.json`` in the cache folder.

    Args:
        datasets: shape and number of classes of the user's own data sets, as in a manifest. Of others of the
            user's own nothing is known.
    """

    def __init__(self, datasets: Mapping[str, Any] | None = None) -> None:
        self._datasets = datasets or {}
        try:
            self._all = _MACHINES.validate_json(_file().read_bytes())
        except (OSError, ValueError):  # not there, or damaged, which counts as not there
            self._all = {}
        here = self._all.setdefault(platform.node(), _Machine())
        self._speeds, self._sizes = here.speeds, here.sizes

    def has(self, device: str) -> bool:
        """Whether anything has been measured on a "cpu" or on "cuda"."""
        return any(key.startswith(json.dumps([device])[:-1]) for key in self._speeds)

    def speed(self, cell: Cell, device: str) -> Speed | None:
        """Of a cell's simulation on a "cpu" or on "cuda"; None where that has not been measured."""
        if not self.has(device):
            return None
        images = self.images(cell.dataset)
        return self._speeds.get(_speed_key(cell.config, images, device)) if images else None

    def sizes(self, cell: Cell) -> Sizes | None:
        """Of a cell's partition; None where they are not known."""
        return self._sizes.get(_sizes_key(cell))

    def measure(self, cells: Sequence[Cell], devices: Iterable[str], tell: Callable[[str], None]) -> None:
        """Measure what is not known yet of ``cells`` and keep it; ``tell`` is called with each step.

        What fails stays unknown: a sweep records why.

        Args:
            devices: "cpu", "cuda" or both; one that a trial's precision does not suit is left out.

        Raises:
            InvalidInput: the file cannot be written; what was measured is known to this object all the same.
        """
        from pfl.engine.device import computes_in, resolve_device

        warm: set[tuple[Any, ...]] = set()
        before = len(self._speeds), len(self._sizes)
        for cell in cells:
            definition = _definition(cell)
            if definition and _sizes_key(cell) not in self._sizes:
                tell(f"{cell.dataset}, {cell.partition}")
                self._sizes[_sizes_key(cell)] = _divide(cell, definition)
            images = self.images(cell.dataset)
            if images is None:
                continue
            for place in dict.fromkeys(devices):
                key = _speed_key(cell.config, images, place)
                if key not in self._speeds and computes_in(cell.config.precision, resolve_device(place)):
                    tell(f"{cell.config.method} with {cell.config.model} on {place}")
                    network = (cell.config.model, cell.dataset, cell.config.batch_size, place)
                    with suppress(Exception):  # of somebody else's method, say
                        self._speeds[key] = _run(cell, images, place, network not in warm)
                    warm.add(network)
        if (len(self._speeds), len(self._sizes)) != before:
            self._save()

    def images(self, dataset: str) -> Images | None:
        """Shape and classes; None for data of the user's own of which no manifest says them."""
        if dataset in DATASETS:
            definition = DATASETS[dataset]
            return definition.shape, definition.classes
        if dataset in self._datasets:
            entry = self._datasets[dataset]
            return tuple(entry["shape"]), entry["classes"]
        return None

    def _save(self) -> None:
        write_json(_file(), _MACHINES.dump_python(self._all))


def _file() -> Path:
    from pfl.files import cache_root

    return cache_root() / "calibration.json"


def _definition(cell: Cell) -> Definition | None:
    """What is known of a cell's data; None for the user's own."""
    name = cell.dataset
    return DATASETS[name] if name in DATASETS else None  # noqa: SIM401 - a registry has no `get`


def _speed_key(config: Config, images: Images, device: str) -> str:
    """What costs time: of the hyperparameters those that are no real numbers, as steps and variants are."""
    counts = {name: value for name, value in config.hyperparameters.items() if not isinstance(value, float)}
    schedule = (config.batch_size, config.epochs, config.dtype, config.precision)
    return json.dumps([device, config.method, counts, config.model, *images, *schedule], sort_keys=True)


def _sizes_key(cell: Cell) -> str:
    return json.dumps([cell.dataset, cell.partition, cell.clients])


def synthetic_simulation(
    config: Config, shape: tuple[int, int, int], classes: int, clients: int = CLIENTS, place: str = "cpu"
) -> Simulation:
    """A simulation on made-up images, before its first round; all clients take part, with a batch each.

    Of a batch that is larger, each has `LARGEST_BATCH` samples.
    """
    import numpy as np
    import torch

    from pfl.data.federation import Federation
    from pfl.data.partition import Partition
    from pfl.engine.device import backend_for
    from pfl.simulation import make_simulation

    each = min(config.batch_size, LARGEST_BATCH) + TEST_SAMPLES
    parts = np.arange(clients * each).reshape(clients, each)
    partition = Partition(
        "made-up", tuple(parts[:, :-TEST_SAMPLES]), tuple(parts[:, -TEST_SAMPLES:]), data_checksum=""
    )
    device = torch.device(place)
    data = _made_up(shape, classes, clients * each, True)
    federation = Federation(data, partition, device, getattr(torch, config.dtype))
    everybody = dataclasses.replace(config, participation=1.0, eval_every=10**9)
    return make_simulation([everybody], federation, [0], backend_for("auto", device))


def _made_up(shape: tuple[int, int, int], classes: int, samples: int, images: bool) -> Dataset:
    """Data of a shape, all classes equally frequent."""
    import numpy as np

    from pfl.data.dataset import Dataset

    rng = np.random.default_rng(0)
    whole = (samples, *shape)
    return Dataset(
        name="made-up",
        images=rng.integers(0, 256, whole, np.uint8) if images else np.broadcast_to(np.uint8(0), whole),
        labels=np.arange(samples) % classes,
        classes=tuple(map(str, range(classes))),
        n_train=samples * 5 // 6,
        checksum="",
        mean=(0.5,) * shape[0],
        std=(0.25,) * shape[0],
        source={},
    )


def _divide(cell: Cell, definition: Definition) -> Sizes | None:
    """The sizes of a cell's partition, of stand-in labels; None where it takes more than labels."""
    from pfl.data.partition import make_partition

    if definition.samples is None:
        return None
    try:
        labels = _made_up(definition.shape, definition.classes, definition.samples, False)
        made = make_partition(cell.partition, labels, cell.clients, run_seed=0)
    except InvalidInput:
        return None
    return Sizes(made.clients, int(made.sizes.sum()), sum(map(len, made.test)))


def _run(cell: Cell, images: Images, place: str, cold: bool) -> Speed:
    """A round and an evaluation; before them, a round that compiles what there is to compile, if ``cold``."""
    import torch

    from pfl.engine.device import numerics, threads
    from pfl.engine.evaluation import evaluate

    config = cell.config
    clients = CLIENTS if place == "cpu" else config.participants(cell.clients or CLIENTS)
    device = torch.device(place)
    with numerics(config.precision), threads(1):
        simulation = synthetic_simulation(config, *images, clients, place)
        if cold:
            simulation.advance()
        before = simulation.training_seconds
        whole, busy = _took(simulation.advance, device)
        share = (simulation.training_seconds - before) / whole
        _, tested = _took(lambda: evaluate(simulation.runs[0].server, simulation.program.method, {}), device)
    local = share * busy
    by_steps = any(phase.steps for phase in simulation.program.method.phases(simulation.runs[0].server))
    return Speed(
        sample=0.0 if by_steps else local / (clients * min(config.batch_size, LARGEST_BATCH)),
        client=local / clients if by_steps else 0.0,
        server=busy - local,
        test=tested / (clients * TEST_SAMPLES),
    )


def _took(work: Callable[[], Any], device: torch.device) -> tuple[float, float]:
    """Seconds of wall time, and those that count: of the one thread at work, whatever else the machine and
    other threads of the process do."""
    import torch

    wall, core = time.perf_counter(), time.thread_time()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    wall, core = time.perf_counter() - wall, time.thread_time() - core
    return wall, wall if device.type == "cuda" else core
