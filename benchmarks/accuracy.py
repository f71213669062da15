"""Accuracies with the fused kernels and with torch's operations, seed by seed.

``python -m benchmarks.accuracy``. FedAvg on CIFAR-10, in float32, with the same partition, initialisations
and minibatches: the only difference is rounding, which training amplifies. With ``--bf16``, the kernels in
bfloat16 are compared with those in float32. Each network and side has its own process.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
from typing import Annotated, Any

import torch
import typer

from benchmarks.workload import JsonFile, Workload, in_subprocess, run, write
from pfl.core.config import Execution
from pfl.core.errors import InvalidInput
from pfl.engine.device import computes_in
from pfl.kernels import compiler
from pfl.run.simulate import simulate_configs
from pipeline.store.scores import gain

NETWORKS = ("lenet5_bn", "lenet4", "spfl_cnn", "cnn4", "resnet8")


def main(
    model: Annotated[list[str] | None, typer.Option(help="See `pfl models`; may be repeated.")] = None,
    rounds: Annotated[int, typer.Option(help="Rounds of a simulation.")] = 6,
    seeds: Annotated[int, typer.Option(min=2, help="Seeds, from 0 on.")] = 3,
    bf16: Annotated[bool, typer.Option("--bf16", help="Compare bfloat16 with float32.")] = False,
    json_file: JsonFile = None,
) -> None:
    """Print each network's accuracy after the last round on both sides, and the mean of their differences."""
    if not compiler():
        raise InvalidInput(
            "CXX", os.environ.get("CXX"), "a C++ compiler, as there are no kernels without one"
        )
    if bf16 and not computes_in("bf16", torch.device("cpu")):
        raise InvalidInput("bf16", bf16, "a CPU with AVX-512 bf16")
    workload = Workload(partition="dirichlet:0.5,min=10", rounds=rounds, eval_every=rounds)
    first, second = ("bf16", "fp32") if bf16 else ("kernels", "torch")
    models: dict[str, dict[str, Any]] = {}
    for name in model or NETWORKS:
        trial = dataclasses.replace(workload, model=name)
        measured = {side: in_subprocess(accuracies, trial, seeds, side) for side in (first, second)}
        mean, error = gain([a - b for a, b in zip(measured[first], measured[second], strict=True)])
        models[name] = measured | {"difference": mean, "error": error}
        sides = ", ".join(f"{side} {statistics.mean(values):.2f} %" for side, values in measured.items())
        print(f"{name:<10} {sides}, difference {mean:+.2f} ± {error:.2f}")
    write(json_file, workload, {"models": models})


def accuracies(workload: Workload, seeds: int, side: str) -> list[float]:
    """Each seed's accuracy (%) of the global model over all clients' test samples, after the last round."""
    if side == "torch":
        os.environ["CXX"] = ""  # so that there is no compiler
    if side == "bf16":
        workload = dataclasses.replace(workload, precision="bf16")
    work, execution = workload, Execution(threads=1)
    (results,) = simulate_configs([work.config], work.data, work.split, range(seeds), execution)
    return [result.metrics.reached().last for result in results]


if __name__ == "__main__":
    run(main)
