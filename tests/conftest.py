"""A small federation that most tests of the engine share."""

from __future__ import annotations

import errno
import math
import os
import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from pfl.client_metrics import CLIENT_METRICS
from pfl.core.config import Config, Execution
from pfl.core.files import cache_root
from pfl.data.dataset import Dataset
from pfl.data.federation import Federation
from pfl.data.partition import Partition
from pfl.data.partitions import PARTITIONS
from pfl.engine import checkpoint, workers
from pfl.engine.local_training import Backend
from pfl.engine.loop import LoopBackend
from pfl.engine.result import Result
from pfl.engine.simulation import Simulation
from pfl.methods import METHODS
from pfl.models import MODELS
from pfl.run.fingerprint import name_of
from pfl.run.simulate import make_simulation, simulate_configs
from pfl.run.trials import Record, Trial, run_trials
from pfl.run.validation import validated
from pfl.testing import method_kit
from pfl.testing.synthetic import make_clients, make_dataset

CONFIG = method_kit.CONFIG

SAMPLE = ("fedavg", "fesem", "pfedsim", "spfl")
"""Methods that `sampled` keeps in the fast suite: of averages, of clusters, of layers, of phases."""

LONGEST = (
    "pipeline/test_end_to_end.py",
    "faults/test_hindered_sweeps.py",
    "faults/test_killed_sweeps.py",
    "pipeline/sweep/test_cluster.py",
    "pipeline/test_installed.py",
)
"""Files that take minutes in the slow suite. They begin first, so that no process is left alone with one."""


if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported, which torch does now and then

# Without the pipeline's libraries, as on a GPU server: only the tests that need no more than the simulator.
if find_spec("ray") is None:
    collect_ignore = [
        "benchmarks",
        "faults",
        "pipeline",
        "tables",
        "test_api.py",
        "test_docs.py",
        "test_examples.py",
        "test_pages.py",
    ]


@pytest.fixture
def fill_disk(monkeypatch) -> Callable[[Path], None]:
    """A function after which the disk is full for the next atomic write of a file."""

    def fill(path: Path) -> None:
        monkeypatch.setattr("pfl.core.files.token_hex", lambda _: "0")
        path.with_name(f"{path.name}.partial-0").symlink_to("/dev/full")

    return fill


@pytest.fixture
def without_locks(monkeypatch) -> None:
    """A file system without locks, as some network file systems are."""

    def flock(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr("fcntl.flock", flock)


def pytest_configure() -> None:
    """Let Ctrl-C interrupt, which a shell's background jobs and all that they start ignore."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of `LONGEST` first, in this order; the others stay as they are."""
    order = {Path(__file__).parent / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path, len(order)))


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """A home folder, which does not exist yet; the working directory is another folder, and empty."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("PFL_CACHE", str(cache_root()))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def own_cache(tmp_path, monkeypatch) -> Path:
    """A cache of the test's own, which does not exist yet."""
    monkeypatch.setenv("PFL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(params=["loop", "stacked"])
def backend(request) -> str:
    """Runs the test on each backend."""
    return request.param


@pytest.fixture(autouse=True)
def _registries_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Methods, networks, metrics and rules that a test hands over as objects are unknown to the next test."""
    for registry in (METHODS, MODELS, CLIENT_METRICS, PARTITIONS):
        monkeypatch.setattr(registry, "_added", dict(registry._added))


def sampled(methods: Iterable[str]) -> list[Any]:
    """Parameters of a test for each method: `SAMPLE` in the fast suite, all others in the slow one."""
    return [name if name in SAMPLE else pytest.param(name, marks=pytest.mark.slow) for name in methods]


def simulate(config: Config, *arguments: Any, **options: Any) -> list[Result]:
    """The results of one configuration by seed, with the further arguments of `simulate_configs`."""
    (results,) = simulate_configs([config], *arguments, **options)
    return results


def run_trial(trial: Trial, *arguments: Any) -> list[Record]:
    """The records of one trial by seed, with the further arguments of `run_trials`."""
    (records,) = run_trials([trial], *arguments)
    return records


def simulation_of(
    config: Config,
    dataset: Dataset,
    partition: Partition,
    backend: Backend | None = None,
    seeds: Sequence[int] = (0,),
    device: str | torch.device = "cpu",
) -> Simulation:
    """The simulation of ``config`` before its first round, by default on the loop backend."""
    config = validated(config)
    federation = Federation(dataset, partition, torch.device(device), getattr(torch, config.dtype))
    return make_simulation([config], federation, seeds, backend or LoopBackend())


def interrupt(round: int, config: Config, dataset: Dataset, partition: Partition, *more: Any) -> None:
    """`simulate` with these arguments, ended by Ctrl-C after ``round``."""

    def on_round(now: int, *_: Any) -> None:
        if now == round:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(config, dataset, partition, *more, on_round=on_round)


def assert_resumes(
    round: int,
    config: Config,
    dataset: Dataset,
    partition: Partition,
    seeds: Sequence[int],
    execution: Execution,
) -> None:
    """A simulation that is interrupted after ``round`` ends with the numbers of one that is not."""
    whole = simulate(config, dataset, partition, seeds, replace(execution, checkpoint_dir=None))
    interrupt(round, config, dataset, partition, seeds, execution)
    resumed = simulate(config, dataset, partition, seeds, execution)
    assert [run.metrics for run in resumed] == [run.metrics for run in whole]


def make_trial(
    config: Config,
    dataset: Dataset,
    partition: Partition,
    seeds: tuple[int, ...] = (0,),
    phase: Literal["search", "final"] = "final",
    clients: int | None = None,
) -> Trial:
    """A trial of one cell."""
    return Trial(
        table="tests",
        cell=f"setting/{config.method}",
        setting="setting",
        row=config.method,
        partition_name="setting",
        phase=phase,
        config=validated(config).to_dict(),
        seeds=seeds,
        dataset=dataset.name,
        partition=partition.spec,
        clients=clients,
        data_checksum=dataset.checksum,
        partition_checksum=partition.checksum,
        behaviour=name_of(validated(config), dataset.shape, len(dataset.classes)),
    )


@pytest.fixture(scope="session")
def dataset() -> Dataset:
    return make_dataset()


@pytest.fixture(scope="session")
def partition(dataset: Dataset) -> Partition:
    return make_clients(dataset, method_kit.SIZES)


@pytest.fixture
def checkpointed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Execution:
    """With a checkpoint every two rounds in ``tmp_path``."""
    monkeypatch.setattr(checkpoint, "EVERY", 2)
    return Execution(checkpoint_dir=str(tmp_path))


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread and no workers, however slow the machine is: a test sees all calls that it watches."""
    torch.set_num_threads(1)
    monkeypatch.setattr(workers, "WORTHWHILE", math.inf)
