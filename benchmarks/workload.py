"""The federation that the benchmarks run, and functions to measure and to write figures."""

from __future__ import annotations

import atexit
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import typer
from torch.utils.flop_counter import FlopCounterMode

from pfl.core.config import Config, Execution, Precision
from pfl.core.errors import InvalidInput
from pfl.data.dataset import Dataset, load
from pfl.data.federation import Federation
from pfl.data.partition import Partition, make_partition
from pfl.engine.device import backend_for, resolve_device
from pfl.engine.result import hardware, versions
from pfl.engine.simulation import Simulation
from pfl.models import MODELS
from pfl.run.simulate import make_simulation
from pfl.run.sources import running_code
from pfl.run.validation import validated
from pfl.testing.synthetic import make_dataset

JsonFile = Annotated[Path | None, typer.Option("--json", help="Write the figures here.")]
Threads = Annotated[int, typer.Option(help="Threads on a CPU.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or auto.")]
Repeats = Annotated[int, typer.Option(help="Measured repeats, interleaved; one more before them warms up.")]


SYNTHETIC = "synthetic"
"""60,000 noisy images of CIFAR-10's size, for measurements that do not depend on their content."""


@dataclass(frozen=True)
class Workload:
    """A simulation to measure; by default FedAvg on CIFAR-10 in 100 clients, similar to pFedSim's setting.

    Attributes:
        dataset: a name of `pfl datasets`, or `SYNTHETIC`.
        method: with its default hyperparameters.
        rounds: more than are measured, so that a method whose rounds differ behaves as in long runs.
        eval_every: rounds between evaluations.
    """

    dataset: str = "cifar10"
    partition: str = "dirichlet:0.1,min=10,test=0.5"
    clients: int = 100
    model: str = "lenet5_bn"
    method: str = "fedavg"
    participation: float = 0.1
    rounds: int = 200
    epochs: int = 5
    batch_size: int = 32
    lr: float = 0.01
    eval_every: int = 10**6
    precision: Precision = "fp32"

    @property
    def data(self) -> Dataset:
        return _data(self.dataset)

    @property
    def split(self) -> Partition:
        return _split(self.partition, self.dataset, self.clients)

    @property
    def config(self) -> Config:
        names = ("model", "method", "participation", "rounds", "epochs", "batch_size", "lr", "eval_every")
        values = {name: getattr(self, name) for name in (*names, "precision")}
        return validated(Config(**values))

    def simulation(
        self,
        device: str = "cpu",
        backend: str = "auto",
        seeds: Sequence[int] = (0,),
        trials: int = 1,
        moments: Sequence[str] = (),
        workers: int = 1,
    ) -> Simulation:
        """A simulation before its first round, of ``trials`` configurations with different learning rates.

        Args:
            moments, workers: as in `pfl.core.config.Execution`.
        """
        place = resolve_device(device)
        federation = Federation(self.data, self.split, place, torch.float32)
        configs = [replace(self.config, lr=self.lr / 2**number) for number in range(trials)]
        execution = Execution(backend=backend, workers=workers)  # type: ignore[arg-type]
        return make_simulation(configs, federation, seeds, backend_for(execution, place), moments=moments)


@cache
def _data(name: str) -> Dataset:
    if name != SYNTHETIC:
        return load(name)
    images = 60_000
    file = Path(tempfile.mkstemp(prefix="pfl-benchmark-")[1])
    atexit.register(file.unlink)
    fields: dict[str, Any] = {
        "checksum": SYNTHETIC,
        "mean": (0.5,) * 3,
        "std": (0.25,) * 3,
        "n_train": images * 5 // 6,
    }
    return make_dataset((3, 32, 32), 10, images, file=file, name=SYNTHETIC, **fields)


@cache
def _split(spec: str, dataset: str, clients: int) -> Partition:
    return make_partition(spec, _data(dataset), clients)


def write(
    json_file: Path | None, workload: Workload, figures: dict[str, Any], threads: int = 1, device: str = "cpu"
) -> None:
    """Write ``figures`` with what they were measured on: work, hardware, versions and commit."""
    if json_file is None:
        return
    document = {
        "workload": asdict(workload),
        **figures,
        "hardware": asdict(hardware(Execution(threads=threads, workers=1), resolve_device(device))),
        "load": os.getloadavg()[2],
        "versions": asdict(versions()),
        **asdict(running_code()),
    }
    json_file.parent.mkdir(parents=True, exist_ok=True)
    json_file.write_text(json.dumps(document, separators=(",", ":")) + "\n", encoding="utf-8")
    print(f"written to {json_file}")


def write_page(folder: Path, template: str, name: str = "README.md", **context: Any) -> None:
    """Write the page ``name`` to ``folder`` from a template beside this file."""
    from jinja2 import Environment, FileSystemLoader

    templates = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=False)
    page = folder / name
    page.write_text(templates.get_template(template).render(context).rstrip() + "\n", encoding="utf-8")
    print(f"written to {page}")


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]], text: int = 1) -> str:
    """A table in Markdown whose first ``text`` columns are text, and the others numbers."""
    rule = ["---"] * text + ["---:"] * (len(columns) - text)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (columns, rule, *rows))


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median over the repeats of ours divided by theirs; each pair was measured in succession."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def run(main: Callable[..., None]) -> None:
    """Run a benchmark's ``main`` as a command; bad input is one line on standard error."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command()(main)
    try:
        app()
    except InvalidInput as error:
        sys.exit(f"error: {error}")


def timed(work: Callable[[], object]) -> float:
    """Seconds that ``work`` takes until the device has finished it."""
    began = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began


def flop(workload: Workload) -> float:
    """FLOP of one image in a training step."""
    data = workload.data
    network = MODELS[workload.model](data.shape, len(data.classes))
    x, y = torch.zeros(workload.batch_size, *data.shape), torch.zeros(workload.batch_size, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        F.cross_entropy(network(x), y).backward()
    return float(counter.get_total_flops()) / workload.batch_size


def peak_rate(
    size: int = 2048, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32
) -> float:
    """FLOP per second of the best of six products of square matrices."""
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    return max(2 * size**3 / timed(lambda: torch.mm(a, b)) for _ in range(6))


def in_subprocess(work: Callable[..., Any], *arguments: Any) -> Any:
    """What ``work`` returns in its own process, whose memory nothing else uses."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(work, *arguments).result()
