"""The stacked backend on a GPU beside the naive loop on the same one, and how far both are from the device.

``python -m benchmarks.gpu``. Written and tried on a CPU (``--device cpu``); no figure of a GPU is in the
repository yet.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Annotated

import torch
import typer

from benchmarks.breakdown import flop
from benchmarks.naive import NaiveFedAvg
from benchmarks.throughput import naive_round
from benchmarks.workload import Device, JsonFile, Repeats, Workload, ratio, run, timed, write
from pfl.config import Execution
from pfl.engine.device import resolve_device
from pfl.engine.simulation import simulate
from pfl.engine.stacked import StackedBackend

WORK = {
    "lenet5_bn": Workload(),
    "resnet8, 40 clients": Workload(
        model="resnet8", clients=40, partition="dirichlet_client:0.1,size=500,test_size=100"
    ),
}

WARM_UP = 5  # rounds, in which most steps come that can come


def main(
    seeds: Annotated[int, typer.Option(help="Seeds of a trial in one stack.")] = 3,
    trials: Annotated[int, typer.Option(help="Trials of a cell in one stack, with all their seeds.")] = 4,
    rounds: Annotated[int, typer.Option(help="Rounds of the pFedSim cell.")] = 200,
    epochs: Annotated[int, typer.Option(help="Local epochs.")] = 5,
    repeats: Repeats = 5,
    device: Device = "cuda",
    json_file: JsonFile = None,
) -> None:
    """Print samples a second, naive and ours with stacks of several sizes, and seconds of a cell."""
    place = resolve_device(device)
    peak, bandwidth = limits(place)
    print(f"device: {peak / 1e12:.1f} TFLOP/s in a float32 product, {bandwidth / 1e9:.0f} GB/s in a copy")
    work = {}
    for name, workload in WORK.items():
        stacks = [(1, 1), (1, seeds), (trials, seeds)]
        found = measure(dataclasses.replace(workload, epochs=epochs), stacks, repeats, device)
        naive = found.pop("naive")
        fastest = max(map(max, found.values()))
        work[name] = {"naive": naive, **found, "share_of_peak": fastest * flop(workload) / peak}
        for stack, rates in found.items():
            print(f"{name}, {stack}: {max(rates):,.0f} samples/s, {ratio(rates, naive):.1f} times naive")
        print(f"  {work[name]['share_of_peak']:.1%} of the device's peak")
    cell = dataclasses.replace(
        WORK["lenet5_bn"], method="pfedsim", rounds=rounds, epochs=epochs, eval_every=20
    )
    execution = Execution(device=device)
    seconds = timed(lambda: simulate(cell.config, cell.data, cell.split, tuple(range(seeds)), execution))
    print(f"a pFedSim cell of {rounds} rounds and {seeds} seeds: {seconds:.1f} s")
    figures = {"peak_flop_per_second": peak, "bytes_per_second": bandwidth}
    write(json_file, cell, {**figures, "work": work, "cell_seconds": seconds})


def limits(device: torch.device, size: int = 4096) -> tuple[float, float]:
    """FLOP a second of a float32 matrix product, bytes a second of a copy, each the best of a few."""
    a, b = (torch.randn(size, size, device=device) for _ in range(2))
    product = min(timed(lambda: torch.mm(a, b)) for _ in range(6))
    copied = min(timed(lambda: a.copy_(b)) for _ in range(6))
    return 2 * size**3 / product, 2 * a.numel() * a.element_size() / copied


def measure(
    workload: Workload, stacks: list[tuple[int, int]], repeats: int, device: str
) -> dict[str, list[float]]:
    """Training samples a second in local training: ``naive``, and ours with stacks of so many trials
    and seeds.
    """
    ours = {
        f"{trials} trials x {seeds} seeds": workload.simulation(device, "stacked", range(seeds), trials)
        for trials, seeds in stacks
    }
    trials, most = stacks[-1]
    plain = workload.simulation(device, "stacked", range(most), trials)
    plain.backend = StackedBackend()
    ours[f"{trials} trials x {most} seeds, without CUDA graphs"] = plain
    first = next(iter(ours.values()))
    network = copy.deepcopy(first.program.net)
    naive = NaiveFedAvg(network, workload.data, workload.split, workload.batch_size)
    rates: dict[str, list[float]] = {"naive": [], **{stack: [] for stack in ours}}
    for repeat in range(-WARM_UP, repeats):
        found = {}
        for stack, simulation in ours.items():
            samples, seconds = simulation.samples, simulation.training_seconds
            simulation.advance()
            found[stack] = (simulation.samples - samples) / (simulation.training_seconds - seconds)
        participants = first.runs[0].server.participants.tolist()
        found["naive"] = naive_round(naive, participants, workload)["training"]
        if repeat >= 0:
            for who, rate in found.items():
                rates[who].append(rate)
    return rates


if __name__ == "__main__":
    run(main)
