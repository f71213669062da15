"""Seconds per round and peak memory against the number of clients, with 100 of them in every round.

``python -m benchmarks.scale``. Synthetic data, a process per federation, checkpoints as in a sweep; one
federation has the size of FEMNIST. Writes ``reports/engineering/scale/``.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.workload import Workload, in_subprocess, run, write, write_page
from pfl.core import memory
from pfl.core.config import CHECKPOINT, Config, Execution
from pfl.core.rng import generator
from pfl.data.dataset import Dataset
from pfl.data.partition import make_partition
from pfl.models import MODELS
from pfl.run.simulate import simulate_configs
from pfl.testing.synthetic import make_dataset
from pipeline.report.plots import COLOURS, as_svg, logarithmic, wide_figure
from pipeline.svg import Canvas

FOLDER = Path("reports/engineering/scale")
PARTICIPANTS = 100
SPREAD = 0.4  # standard deviation of the clients' sizes over their mean, as in LEAF's FEMNIST


@dataclass(frozen=True)
class Scale:
    """A federation of synthetic data and a simulation on it, evaluated once, after the last round.

    Attributes:
        samples: mean number per client; a quarter of them are test samples.
        shape, classes: of the images.
    """

    clients: int
    method: str
    model: str = "cnn_digits"
    samples: int = 20
    shape: tuple[int, int, int] = (1, 8, 8)
    classes: int = 10
    rounds: int = 20

    @property
    def config(self) -> Config:
        share = min(1.0, PARTICIPANTS / self.clients)
        return Config(
            method=self.method,
            model=self.model,
            participation=share,
            rounds=self.rounds,
            eval_every=self.rounds,
        )

    def dataset(self, folder: Path) -> Dataset:
        """Noisy images of a pattern per class, by writer; memory-mapped from ``folder`` like real ones."""
        stream = generator(0, "scale")
        sizes = stream.normal(self.samples, SPREAD * self.samples, self.clients)
        writer = np.repeat(np.arange(self.clients), np.maximum(8, np.rint(sizes)).astype(np.int64))
        labels = stream.integers(0, self.classes, len(writer))
        return make_dataset(
            self.shape,
            self.classes,
            labels=labels,
            file=folder / "images.bin",
            checksum=str(self),
            mean=(0.5,),
            std=(0.25,),
            columns={"writer": writer},
        )


FEDERATIONS = (
    *(Scale(clients, method) for clients in (100, 1000, 10_000, 100_000) for method in ("fedavg", "fedper")),
    *(Scale(3597, method, "lenet5", 224, (1, 28, 28), 62) for method in ("fedavg", "fedper")),
)


def main() -> None:
    """Measure every federation, print seconds and megabytes, and write the report."""
    runs = []
    for scale in FEDERATIONS:
        cost = in_subprocess(measure, scale)
        runs.append({**asdict(scale), **cost})
        print(
            f"{scale.method}, {scale.model}, {scale.clients:,} clients: {cost['seconds']:.3f} s per round, "
            f"evaluation {cost['evaluation_cpu_seconds']:.1f} s, {cost['peak_memory_bytes'] / 1e6:.0f} MB"
        )
    write(FOLDER / "scale.json", Workload(), {"import_torch": in_subprocess(imported), "runs": runs})
    draw()


def imported() -> int:
    """Peak bytes of a process that has imported torch."""
    return memory.peak()


def measure(scale: Scale) -> dict[str, float]:
    """Simulate ``scale`` on one thread.

    Returns:
        ``seconds`` of a round by the clock and ``cpu_seconds`` of this process, medians over the rounds
        between the first and the last; ``evaluation_cpu_seconds`` of all clients, in the last round;
        ``partition_seconds``; ``peak_memory_bytes`` of the process; ``checkpoint_bytes``; the numbers of
        ``parameters`` and ``images``.
    """
    clocks: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as name:
        data = scale.dataset(Path(name))
        began = time.perf_counter()
        partition = make_partition("by:writer", data, None)
        partition_seconds = time.perf_counter() - began
        simulate_configs(
            [scale.config],
            data,
            partition,
            execution=Execution(device="cpu", checkpoint_dir=name),
            on_round=lambda *_: clocks.append((time.perf_counter(), time.process_time())),
        )
        checkpoint_bytes = (Path(name) / CHECKPOINT).stat().st_size
    *rounds, last = [(b - a, cpu_b - cpu_a) for (a, cpu_a), (b, cpu_b) in pairwise(clocks)]
    seconds, cpu_seconds = map(statistics.median, zip(*rounds, strict=True))
    network = MODELS[scale.model](scale.shape, scale.classes)
    return {
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "evaluation_cpu_seconds": last[1] - cpu_seconds,
        "partition_seconds": partition_seconds,
        "peak_memory_bytes": memory.peak(),
        "checkpoint_bytes": checkpoint_bytes,
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "images": len(data.labels),
    }


def draw() -> None:
    """Write the report's page and plot from ``scale.json`` alone."""
    figures = json.loads((FOLDER / "scale.json").read_text(encoding="utf-8"))
    (FOLDER / "scale.svg").write_text(plot(figures), encoding="utf-8")
    write_page(FOLDER, "scale.md.j2", **figures)


@as_svg
def plot(figures: dict[str, Any]) -> Canvas:
    """Seconds per round and peak memory against the number of clients, a line per method."""
    figure = wide_figure(3)
    panels = figure.subplots(1, 2)
    points = [point for point in figures["runs"] if point["model"] == Scale.model]
    for place, method in enumerate(dict.fromkeys(point["method"] for point in points), start=1):
        mine = [point for point in points if point["method"] == method]
        clients = [point["clients"] for point in mine]
        for panel, values in zip(
            panels,
            ([point["seconds"] for point in mine], [point["peak_memory_bytes"] / 1e9 for point in mine]),
            strict=True,
        ):
            panel.plot(clients, values, ("o-", "s--")[place - 1], color=COLOURS[place], label=method)
    for panel, label in zip(panels, ("seconds per round", "peak memory, GB"), strict=True):
        logarithmic(panel)
        panel.set_ylim(bottom=0)
        panel.set_xlabel("clients, 100 of them a round")
        panel.set_ylabel(label)
    panels[1].axhline(figures["import_torch"] / 1e9, color=COLOURS[0], label="import torch")
    figure.legend(*panels[1].get_legend_handles_labels(), loc="outside right upper")
    return figure


if __name__ == "__main__":
    run(main)
