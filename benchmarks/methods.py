"""The cost of every method relative to FedAvg: seconds of a simulation's rounds without its evaluations.

``python -m benchmarks.methods``. Each method's simulation alternates round by round with one of FedAvg, so
that other work on the machine affects both equally. The first round is not measured: what a method does once,
before it trains, would weigh more in a few rounds than in a whole simulation.
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
    rounds: Annotated[int, typer.Option(help="Measured rounds of a simulation.")] = 8,
    epochs: Annotated[int, typer.Option(help="Local epochs.")] = 2,
    json_file: JsonFile = None,
) -> None:
    """Print each method's seconds per round and its cost relative to FedAvg."""
    torch.set_num_threads(1)
    # Nor is the last round measured, which has the evaluation: warm-up shares are of a whole simulation.
    workload = Workload(dataset=dataset, model=model, rounds=rounds + 2, epochs=epochs, participation=0.05)
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
    simulations = [each.simulation() for each in (workload, dataclasses.replace(workload, method="fedavg"))]
    seconds, samples = [0.0, 0.0], [0, 0]
    for round in range(rounds + 1):
        for place, simulation in enumerate(simulations):
            before = simulation.samples
            took = timed(simulation.advance)
            if round:
                seconds[place] += took
                samples[place] += simulation.samples - before
    relative = seconds[0] / seconds[1]
    return {
        "seconds": seconds[0] / rounds,
        "relative": relative,
        "relative_by_sample": relative * samples[1] / samples[0],
    }


if __name__ == "__main__":
    run(main)
