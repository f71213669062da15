"""What every method costs beside FedAvg: seconds of a whole simulation without its evaluations.

``python -m benchmarks.methods``. Each method's simulation runs round by round in turn with one of FedAvg, so
that other work on the machine affects both equally.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import torch
import typer

from benchmarks.workload import JsonFile, Workload, run, timed, write
from pfl.methods import METHODS


def main(
    method: Annotated[list[str] | None, typer.Option(help="See `pfl methods`; by default all.")] = None,
    model: Annotated[str, typer.Option(help="See `pfl models`.")] = "lenet5_bn",
    dataset: Annotated[str, typer.Option(help="A name of `pfl datasets`, or a path.")] = "cifar10",
    rounds: Annotated[int, typer.Option(help="Rounds of a simulation.")] = 4,
    epochs: Annotated[int, typer.Option(help="Local epochs.")] = 2,
    json_file: JsonFile = None,
) -> None:
    """Print each method's seconds per round and its cost relative to FedAvg."""
    torch.set_num_threads(1)
    # One evaluation, after the last round, is not measured: warm-up shares are those of a whole simulation.
    workload = Workload(dataset=dataset, model=model, rounds=rounds + 1, epochs=epochs, participation=0.05)
    workload.simulation().advance()
    methods: dict[str, dict[str, Any]] = {}
    for name in method or METHODS:
        methods[name] = cost = measure(dataclasses.replace(workload, method=name), rounds)
        print(
            f"{name:<14} {cost['seconds']:7.2f} s per round, {cost['relative']:5.2f} times fedavg, "
            f"{cost['relative_by_sample']:5.2f} times per training sample"
        )
    write(json_file, workload, {"methods": methods})


def measure(workload: Workload, rounds: int) -> dict[str, float]:
    """Mean seconds per round of a simulation, the ratio to FedAvg's, and that ratio per training sample:
    a method may train more clients, or more often, than FedAvg."""
    theirs = workload.simulation()
    fedavg = dataclasses.replace(workload, method="fedavg").simulation()
    seconds = [0.0, 0.0]
    for _ in range(rounds):
        for place, simulation in enumerate((theirs, fedavg)):
            seconds[place] += timed(simulation.advance)
    relative = seconds[0] / seconds[1]
    return {
        "seconds": seconds[0] / rounds,
        "relative": relative,
        "relative_by_sample": relative * fedavg.samples / theirs.samples,
    }


if __name__ == "__main__":
    run(main)
