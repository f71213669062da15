"""Accuracies with the fused kernels beside those with torch's operations, seed by seed.

``python -m benchmarks.accuracy``. FedAvg on CIFAR-10, in float32, with the same partition, initialisations
and minibatches: what remains is rounding, which training amplifies. A process for each network and side.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
from typing import Annotated, Any

import typer

from benchmarks.workload import JsonFile, Workload, in_subprocess, run, write
from pfl.core.config import Execution
from pfl.core.errors import InvalidInput
from pfl.kernels import compiler
from pfl.run.simulate import simulate

NETWORKS = ("lenet5_bn", "lenet4", "spfl_cnn", "cnn4", "resnet8")


def main(
    model: Annotated[list[str] | None, typer.Option(help="See `pfl models`; may be repeated.")] = None,
    rounds: Annotated[int, typer.Option(help="Rounds of a simulation.")] = 6,
    seeds: Annotated[int, typer.Option(min=2, help="Seeds, from 0 on.")] = 3,
    json_file: JsonFile = None,
) -> None:
    """Print each network's accuracy after the last round on both sides, and the mean of their differences."""
    if not compiler():
        raise InvalidInput(
            "CXX", os.environ.get("CXX"), "a C++ compiler, as there are no kernels without one"
        )
    workload = Workload(partition="dirichlet:0.5,min=10", rounds=rounds, eval_every=rounds)
    models: dict[str, dict[str, Any]] = {}
    for name in model or NETWORKS:
        trial = dataclasses.replace(workload, model=name)
        models[name] = {"kernels": in_subprocess(accuracies, trial, seeds, True)}
        models[name] |= {"torch": in_subprocess(accuracies, trial, seeds, False)}
        models[name] |= dict(zip(("difference", "error"), difference(**models[name]), strict=True))
        print(
            f"{name:<10} kernels {statistics.mean(models[name]['kernels']):.2f} %, "
            f"torch {statistics.mean(models[name]['torch']):.2f} %, "
            f"difference {models[name]['difference']:+.2f} ± {models[name]['error']:.2f}"
        )
    write(json_file, workload, {"models": models})


def accuracies(workload: Workload, seeds: int, kernels: bool) -> list[float]:
    """Each seed's accuracy (%) of the global model over all clients' test samples, after the last round."""
    if not kernels:
        os.environ["CXX"] = ""  # and so there is no compiler
    results = simulate(workload.config, workload.data, workload.split, range(seeds), Execution(threads=1))
    return [result.metrics.reached().last for result in results]


def difference(kernels: list[float], torch: list[float]) -> tuple[float, float]:
    """The mean of the seeds' differences, kernels minus torch, and its standard error, in points."""
    differences = [a - b for a, b in zip(kernels, torch, strict=True)]
    return statistics.mean(differences), statistics.stdev(differences) / len(differences) ** 0.5


if __name__ == "__main__":
    run(main)
