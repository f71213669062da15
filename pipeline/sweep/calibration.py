"""Measured speed of a method with a network on this machine, kept in the user's cache.

A few rounds on synthetic images are enough; their time is scaled to a table's schedule and sizes.
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

from pfl.core.config import Config
from pfl.core.errors import InvalidInput
from pfl.core.files import write_json
from pfl.data.datasets import DATASETS

if TYPE_CHECKING:
    import torch

    from pfl.data.definition import Definition
    from pfl.engine.simulation import Simulation
    from pfl.models import Shape
    from pipeline.spec.cells import Cell

CLIENTS = 2
"""Participants in a measurement on a CPU, which trains one after another; a GPU gets all at once."""

TEST_SAMPLES = 64
"""Test samples of each client in a measurement."""

LARGEST_BATCH = 1024
"""Larger batches are measured with this size, because a very large number requests a full batch."""

Images = tuple["Shape", int]
"""Shape and number of classes of a data set."""


@dataclass(frozen=True)
class Speed:
    """Seconds that a method with a network takes on one core, or on one GPU.

    Attributes:
        sample: local training per round and training sample of a participant, all epochs together.
        client: local training per round and participant, for a method that takes a number of steps.
        server: the server's work per round.
        test: evaluation per test sample, all moments together.
    """

    sample: float
    client: float
    server: float
    test: float

    def seconds(self, config: Config, sizes: Sizes) -> float:
        """Seconds of a whole simulation."""
        mean = sizes.train / sizes.clients
        a_round = config.participants(sizes.clients) * (self.client + self.sample * mean) + self.server
        evaluations = math.ceil(config.rounds / config.eval_every)
        return config.rounds * a_round + evaluations * self.test * sizes.test


@dataclass(frozen=True)
class Sizes:
    """Sizes of a divided data set: clients, and the training and test samples of all clients together."""

    clients: int
    train: int
    test: int


@dataclass(frozen=True)
class _Machine:
    """Measurements of one machine: speeds by `_speed_key` and sizes by `_sizes_key`."""

    speeds: dict[str, Speed] = field(default_factory=dict)
    sizes: dict[str, Sizes | None] = field(default_factory=dict)


_MACHINES = TypeAdapter(dict[str, _Machine])
"""Measurements by the name of the machine."""


class Calibration:
    """What has been measured on this machine, in ``calibration.json`` in the cache folder.

    Args:
        datasets: shape and number of classes of the user's own data sets, as in a manifest. The user's data
            sets that are missing here count as unknown.
    """

    def __init__(self, datasets: Mapping[str, Any] | None = None) -> None:
        self._datasets = datasets or {}
        try:
            self._all = _MACHINES.validate_json(_file().read_bytes())
        except (OSError, ValueError):  # missing, or damaged, which counts as missing
            self._all = {}
        here = self._all.setdefault(platform.node(), _Machine())
        self._speeds, self._sizes = here.speeds, here.sizes

    def has(self, device: str) -> bool:
        """Whether anything has been measured on a "cpu" or on "cuda"."""
        return any(key.startswith(json.dumps([device])[:-1]) for key in self._speeds)

    def speed(self, cell: Cell, device: str) -> Speed | None:
        """The speed of a cell's simulation on a "cpu" or on "cuda"; None if it has not been measured."""
        if not self.has(device):
            return None
        images = self.images(cell.dataset)
        return self._speeds.get(_speed_key(cell.config, images, device)) if images else None

    def sizes(self, cell: Cell) -> Sizes | None:
        """The sizes of a cell's partition; None if they are not known."""
        return self._sizes.get(_sizes_key(cell))

    def measure(self, cells: Sequence[Cell], devices: Iterable[str], tell: Callable[[str], None]) -> None:
        """Measure what is not known yet about ``cells`` and store it; ``tell`` is called with each step.

        A failed measurement leaves the value unknown; the sweep itself will record the cause.

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
                    with suppress(Exception, SystemExit):  # for example in a third-party method
                        self._speeds[key] = _run(cell, images, place, network not in warm)
                    warm.add(network)
        if (len(self._speeds), len(self._sizes)) != before:
            self._save()

    def images(self, dataset: str) -> Images | None:
        """Shape and number of classes; None for the user's own data without a manifest."""
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
    from pfl.core.files import cache_root

    return cache_root() / "calibration.json"


def _definition(cell: Cell) -> Definition | None:
    """The definition of a cell's data set; None for the user's own."""
    name = cell.dataset
    return DATASETS[name] if name in DATASETS else None  # noqa: SIM401 - a registry has no `get`


def _speed_key(config: Config, images: Images, device: str) -> str:
    """What the time depends on; of the hyperparameters, only non-real ones such as steps and variants."""
    counts = {name: value for name, value in config.hyperparameters.items() if not isinstance(value, float)}
    schedule = (config.batch_size, config.epochs, config.dtype, config.precision)
    return json.dumps([device, config.method, counts, config.model, *images, *schedule], sort_keys=True)


def _sizes_key(cell: Cell) -> str:
    return json.dumps([cell.dataset, cell.partition, cell.clients])


def synthetic_simulation(
    config: Config, shape: tuple[int, int, int], classes: int, clients: int = CLIENTS, place: str = "cpu"
) -> Simulation:
    """A simulation on synthetic images, before its first round; all clients take part, with one batch each.

    If the batch size is larger than `LARGEST_BATCH`, each client has `LARGEST_BATCH` samples.
    """
    import numpy as np
    import torch

    from pfl.core.config import Execution
    from pfl.data.federation import Federation
    from pfl.data.partition import Partition
    from pfl.engine.device import backend_for
    from pfl.run.simulate import make_simulation
    from pfl.testing.synthetic import make_dataset

    each = min(config.batch_size, LARGEST_BATCH) + TEST_SAMPLES
    parts = np.arange(clients * each).reshape(clients, each)
    partition = Partition(
        "made-up", tuple(parts[:, :-TEST_SAMPLES]), tuple(parts[:, -TEST_SAMPLES:]), data_checksum=""
    )
    device = torch.device(place)
    data = make_dataset(shape, classes, clients * each)
    federation = Federation(data, partition, device, getattr(torch, config.dtype), config.input_scale)
    everybody = dataclasses.replace(config, participation=1.0, eval_every=10**9)
    return make_simulation([everybody], federation, [0], backend_for(Execution(workers=1), device))


def _divide(cell: Cell, definition: Definition) -> Sizes | None:
    """The sizes of a cell's partition of synthetic labels; None if the partition needs more than labels."""
    from pfl.data.partition import make_partition
    from pfl.testing.synthetic import make_dataset

    if definition.samples is None:
        return None
    try:
        samples = definition.samples
        labels = make_dataset(
            definition.shape, definition.classes, samples, blank=True, n_train=samples * 5 // 6
        )
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
    """Seconds of wall time, and seconds of the one working thread alone, whatever else the machine and other
    threads of the process do."""
    import torch

    wall, core = time.perf_counter(), time.thread_time()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    wall, core = time.perf_counter() - wall, time.thread_time() - core
    return wall, wall if device.type == "cuda" else core
