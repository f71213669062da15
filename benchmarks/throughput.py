"""Training samples per second of one trial, ours and the textbook loop's.

``python -m benchmarks.throughput --help``. Both run in one process per network, alternating round by round
with the same participants, so that other work on the machine affects both equally. The share of the core's
peak is that of local training: FLOP per second of the plain network over that of a matrix product.
"""

from __future__ import annotations

import copy
import dataclasses
import os
import statistics
from typing import Annotated, Any

import torch
import typer

from benchmarks.textbook import TextbookFedAvg
from benchmarks.workload import (
    Device,
    JsonFile,
    Repeats,
    Threads,
    Workload,
    flop,
    in_subprocess,
    peak_rate,
    ratio,
    run,
    timed,
    write,
)
from pfl.engine.device import computes_in, numerics, resolve_device
from pfl.kernels import compiler

DEFAULT = Workload(eval_every=1)
FEWER_TESTS = "dirichlet:0.1,min=10"  # a quarter of the samples for tests, the default of partitions


def main(
    model: Annotated[list[str] | None, typer.Option(help="See `pfl models`; may be repeated.")] = None,
    dataset: Annotated[str, typer.Option(help="A name of `pfl datasets`, or a path.")] = DEFAULT.dataset,
    partition: Annotated[str, typer.Option(help="See `pfl partitions`.")] = DEFAULT.partition,
    clients: Annotated[int, typer.Option(help="Number of clients.")] = DEFAULT.clients,
    participation: Annotated[float, typer.Option(help="Share of the clients in a round.")] = 0.1,
    epochs: Annotated[int, typer.Option(help="Local epochs.")] = DEFAULT.epochs,
    batch_size: Annotated[int, typer.Option(help="Images per step.")] = DEFAULT.batch_size,
    repeats: Repeats = 5,
    backend: Annotated[str, typer.Option(help="loop, stacked or auto.")] = "auto",
    device: Device = "cpu",
    threads: Threads = 1,
    precisions: Annotated[bool, typer.Option("--precisions", help="Only in fp32 and in bf16.")] = False,
    json_file: JsonFile = None,
) -> None:
    """Print samples per second of the textbook loop and of the engine, of training and of whole rounds."""
    workload = dataclasses.replace(
        DEFAULT,
        dataset=dataset,
        partition=partition,
        clients=clients,
        participation=participation,
        epochs=epochs,
        batch_size=batch_size,
    )
    models = {}

    def take(name: str, title: str, **overrides: Any) -> None:
        trial = dataclasses.replace(workload, model=name, **overrides)
        models[title] = in_subprocess(measure, trial, repeats, backend, device, threads)
        print(f"{title}, {threads} thread{'s' * (threads > 1)}, {device}")
        for part in ("training", "round"):
            figures = models[title][part]
            print(
                f"  {part:<12} textbook {statistics.median(figures['textbook']):>9,.0f} samples/s, "
                f"ours {statistics.median(figures['engine']):>9,.0f}, ratio {figures['ratio']:.2f}"
            )
        if device == "cpu" and threads == 1:
            share, peak = models[title]["share_of_peak"], models[title]["peak_flop_per_second"]
            print(f"  {'of the peak':<12} {share:.0%} of {peak / 1e9:.0f} GFLOP/s in a matrix product")
        write(json_file, workload, {"models": models}, threads, device)

    names = model or ["lenet5_bn", "lenet4", "spfl_cnn", "cnn4", "resnet8"]
    for name in names:
        take(name, name)
        if computes_in("bf16", resolve_device(device)):
            take(name, f"{name}, bf16", precision="bf16")
        else:
            print(f"{name}, bf16: not supported here")
        if partition == DEFAULT.partition and not precisions:
            take(name, f"{name}, a quarter for tests", partition=FEWER_TESTS)
    if compiler() and not precisions:
        os.environ["CXX"] = ""  # so that later processes find no compiler
        for name in names:
            take(name, f"{name}, no compiler")


def measure(workload: Workload, repeats: int, backend: str, device: str, threads: int) -> dict[str, Any]:
    """Samples per second of ``repeats`` rounds.

    Returns:
        For ``training`` (local training alone) and ``round`` (aggregation and an evaluation of every client
        included): lists ``textbook`` and ``engine``, and the median ``ratio``. On a CPU also
        ``peak_flop_per_second`` of the core, and ``share_of_peak``, that of the engine's local training.
    """
    torch.set_num_threads(threads)
    simulation = workload.simulation(device, backend, moments=("post_aggregation",))
    network = copy.deepcopy(simulation.program.net).to(resolve_device(device))
    network.bf16 = False  # the textbook loop is always in float32
    textbook = TextbookFedAvg(network, workload.data, workload.split, workload.batch_size)
    rates: dict[str, dict[str, Any]] = {
        part: {"textbook": [], "engine": []} for part in ("training", "round")
    }
    for repeat in range(repeats + 1):
        samples, trained = simulation.samples, simulation.training_seconds
        with numerics(workload.precision):
            seconds = timed(simulation.advance)
        samples, trained = simulation.samples - samples, simulation.training_seconds - trained
        participants = simulation.runs[0].server.participants.tolist()
        theirs = textbook_round(textbook, participants, workload)
        if repeat:
            rates["training"]["engine"].append(samples / trained)
            rates["round"]["engine"].append(samples / seconds)
            for part, rate in theirs.items():
                rates[part]["textbook"].append(rate)
    for figures in rates.values():
        figures["ratio"] = ratio(figures["engine"], figures["textbook"])
    if resolve_device(device).type != "cpu":
        return rates
    peak = peak_rate()
    share = flop(workload) * statistics.median(rates["training"]["engine"]) / peak
    return {**rates, "peak_flop_per_second": peak, "share_of_peak": share}


def textbook_round(textbook: TextbookFedAvg, participants: list[int], workload: Workload) -> dict[str, float]:
    """Samples per second of a round of the textbook loop, without and with aggregation and evaluation."""
    result: list[Any] = []
    trained = timed(lambda: result.extend(textbook.train(participants, workload.epochs, workload.lr)))
    samples, states = result
    rest = timed(lambda: textbook.aggregate(participants, states)) + timed(textbook.evaluate)
    return {"training": samples / trained, "round": samples / (trained + rest)}


if __name__ == "__main__":
    run(main)
