"""Peak resident memory of trials on CIFAR-10, each in its own process.

``python -m benchmarks.memory``. Also of the naive loop, and of a bare ``import torch``.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated

import torch
import typer

from benchmarks.naive import NaiveFedAvg
from benchmarks.workload import JsonFile, Workload, in_subprocess, run, write
from pfl.core import memory
from pfl.models import MODELS


def main(
    model: Annotated[list[str] | None, typer.Option(help="See `pfl models`; may be repeated.")] = None,
    method: Annotated[str, typer.Option(help="See `pfl methods`.")] = "pfedsim",
    rounds: Annotated[int, typer.Option(help="Rounds of the trial.")] = 6,
    json_file: JsonFile = None,
) -> None:
    """Print megabytes: importing torch, and trials of several networks, ours and naive."""
    workload = Workload(method=method, rounds=rounds, epochs=1, eval_every=2)
    baseline = in_subprocess(imported)
    print(f"import torch: {baseline / 1e6:.0f} MB")
    models = {}
    for name in model or ("lenet5_bn", "cnn4", "resnet8"):
        trial = dataclasses.replace(workload, model=name)
        models[name] = {"engine": in_subprocess(engine, trial), "naive": in_subprocess(naive, trial)}
        print(f"{name}: {models[name]['engine'] / 1e6:.0f} MB, naive {models[name]['naive'] / 1e6:.0f} MB")
    write(json_file, workload, {"import_torch": baseline, "models": models})


def imported() -> int:
    """Bytes of a process that has imported torch."""
    return memory.peak()


def engine(workload: Workload) -> int:
    """Peak bytes of our trial, including evaluations."""
    torch.set_num_threads(1)
    simulation = workload.simulation()
    for _ in range(workload.rounds):
        simulation.advance()
    return memory.peak()


def naive(workload: Workload) -> int:
    """Peak bytes of the same number of rounds of the naive loop."""
    torch.set_num_threads(1)
    data = workload.data
    network = MODELS[workload.model](data.shape, len(data.classes))
    loop = NaiveFedAvg(network, data, workload.split, workload.batch_size)
    selected = workload.config.participants(workload.clients)
    for round in range(workload.rounds):
        participants = [(first + selected * round) % workload.clients for first in range(selected)]
        _, states = loop.train(participants, workload.epochs, workload.lr)
        loop.aggregate(participants, states)
        loop.evaluate()
    return memory.peak()


if __name__ == "__main__":
    run(main)
