"""Seconds per round and peak memory against participants, clients, networks, stack size and cores.

``python -m benchmarks.scaling``. FedAvg without evaluations, one local epoch (five where workers share the
participants), a process per point, whose memory is measured.
"""

from __future__ import annotations

import statistics
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from typing import Any

import torch

from benchmarks.workload import JsonFile, Repeats, Workload, in_subprocess, run, timed, write
from pfl.core import memory
from pfl.core.cores import cores

BASE = Workload(epochs=1)
PARTICIPANTS = (5, 10, 20, 40, 80)
CLIENTS = (50, 100, 200, 400)
NETWORKS = ("lenet5", "lenet5_bn", "cnn4", "resnet8", "resnet10")
STACKS = (1, 2, 5, 10, 20)


def main(repeats: Repeats = 3, json_file: JsonFile = None) -> None:
    """Print the curves."""
    counts = [count for count in (1, 2, 4, 8, 16, 32, 64) if count <= cores()]
    figures: dict[str, Any] = {}

    def curve(name: str, points: dict[Any, tuple[Workload, str, int]]) -> None:
        figures[name] = []
        for at, point in points.items():
            cost = in_subprocess(measure, *point, repeats)
            figures[name].append({"at": at, **cost})
            rate, megabytes = cost["samples_per_second"], cost["peak_memory_bytes"] / 1e6
            print(
                f"{name} {at}: {cost['seconds']:.3f} s per round, {rate:,.0f} samples/s, {megabytes:.0f} MB"
            )

    curve("participants", {n: (replace(BASE, participation=n / 100), "loop", 1) for n in PARTICIPANTS})
    curve("clients", {n: (replace(BASE, clients=n, participation=10 / n), "loop", 1) for n in CLIENTS})
    curve("network", {name: (replace(BASE, model=name), "loop", 1) for name in NETWORKS})
    curve("stack", {n: (replace(BASE, participation=n / 100), "stacked", 1) for n in STACKS})
    curve("workers", {n: (replace(BASE, epochs=5), "loop", n) for n in counts})
    figures["trials"] = []
    for count in counts:
        rate = side_by_side(count, repeats)
        figures["trials"].append({"at": count, "samples_per_second": rate})
        print(f"{count} trials side by side: {rate:,.0f} samples/s")
    write(json_file, BASE, figures)


def measure(workload: Workload, backend: str, workers: int, repeats: int) -> dict[str, float]:
    """Median seconds of a round, samples per second, parameters of the network and peak memory."""
    torch.set_num_threads(1)
    simulation = workload.simulation(backend=backend, workers=workers)
    simulation.advance()
    before = simulation.samples
    seconds = [timed(simulation.advance) for _ in range(repeats)]
    return {
        "seconds": statistics.median(seconds),
        "samples_per_second": (simulation.samples - before) / sum(seconds),
        "parameters": sum(parameter.numel() for parameter in simulation.program.net.parameters()),
        "peak_memory_bytes": memory.peak(),
    }


def side_by_side(count: int, repeats: int) -> float:
    """Samples per second of ``count`` trials together, each in its own process."""
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
        list(pool.map(measure, *zip(*[(BASE, "loop", 1, 1)] * count, strict=True)))  # starts all processes
        runs = pool.map(measure, *zip(*[(BASE, "loop", 1, 2 * repeats)] * count, strict=True))
        return sum(run["samples_per_second"] for run in runs)


if __name__ == "__main__":
    run(main)
