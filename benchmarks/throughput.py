"""Training samples a second of one trial, ours beside the naive loop.

``python -m benchmarks.throughput --help``. Both run in one process, round after round in turn, so that
whatever else the machine does falls on both alike.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Annotated

import torch
import typer

from benchmarks.naive import NaiveFedAvg
from pfl.config import Config, Execution
from pfl.data.dataset import load
from pfl.data.federation import Federation
from pfl.data.partition import make_partition
from pfl.engine.simulation import Simulation, backend_for, resolve_device
from pfl.models import MODELS
from pfl.trials import commit, hardware


def main(
    dataset: Annotated[str, typer.Option(help="A name of `pfl datasets`, or a path.")] = "digits",
    partition: Annotated[str, typer.Option(help="See `pfl partitions`.")] = "dirichlet:0.1",
    clients: Annotated[int, typer.Option(help="Number of clients.")] = 20,
    model: Annotated[str, typer.Option(help="See `pfl models`.")] = "cnn_digits",
    participation: Annotated[float, typer.Option(help="Share of the clients in a round.")] = 0.5,
    epochs: Annotated[int, typer.Option(help="Local epochs.")] = 5,
    batch_size: Annotated[int, typer.Option(help="Images a step.")] = 32,
    repeats: Annotated[int, typer.Option(help="Rounds of each, in turn.")] = 5,
    backend: Annotated[str, typer.Option(help="loop, stacked or auto.")] = "auto",
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
    threads: Annotated[int, typer.Option(help="Threads on a CPU.")] = 1,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures here.")] = None,
) -> None:
    """Print the medians of samples a second of the naive loop and of the engine, and their ratio."""
    torch.set_num_threads(threads)
    place = resolve_device(device)
    data = load(dataset)
    split = make_partition(partition, data, clients)
    federation = Federation(data, split, place, torch.float32)
    config = Config(
        method="fedavg",
        model=model,
        participation=participation,
        rounds=2 * repeats + 2,
        epochs=epochs,
        batch_size=batch_size,
        lr=0.01,
        eval_every=10**6,
    ).validated()
    simulation = Simulation(config, federation, (0,), backend_for(backend, place))

    pool = torch.arange(len(data.labels), device=place)
    x, y = federation.batch(pool)
    network = MODELS[model](data.shape, len(data.classes)).to(place)
    naive = NaiveFedAvg(network, x, y, list(split.train))

    rates: dict[str, list[float]] = {"naive": [], "engine": []}
    for repeat in range(repeats + 1):
        before = simulation.samples
        began = time.perf_counter()
        simulation.advance()
        engine = (simulation.samples - before) / (time.perf_counter() - began)
        participants = simulation.runs[0].server.participants.tolist()
        began = time.perf_counter()
        samples = naive.round(participants, epochs, batch_size, config.lr)
        if place.type == "cuda":
            torch.cuda.synchronize()
        reference = samples / (time.perf_counter() - began)
        if repeat:  # the first round of each warms up
            rates["engine"].append(engine)
            rates["naive"].append(reference)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    ratio = statistics.median(a / b for a, b in zip(rates["engine"], rates["naive"], strict=True))
    print(f"{model}, batch {batch_size}, {threads} threads, {place.type}")
    print(f"  naive  {medians['naive']:>10,.0f} samples/s\n  engine {medians['engine']:>10,.0f} samples/s")
    print(f"  ratio  {ratio:>10.2f}")
    if json_file:
        execution = Execution(device=place.type, backend=backend, threads=threads)  # type: ignore[arg-type]
        document = {
            "model": model,
            "batch_size": batch_size,
            "samples_per_second": medians,
            "ratio": ratio,
            "rates": rates,
            "hardware": hardware(execution, place),
            **commit(),
        }
        json_file.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    typer.run(main)
