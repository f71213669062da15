"""The stacked backend compared with the textbook loop on a GPU, and with the device's peak.

``python -m benchmarks.gpu``, on random images; ``--device cpu`` is only for trying it out. The textbook loop
runs with torch's own settings: float32, and TensorFloat-32 in convolutions.
"""

from __future__ import annotations

import copy
import dataclasses
import statistics
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile

from benchmarks.textbook import TextbookFedAvg
from benchmarks.throughput import textbook_round
from benchmarks.workload import (
    SYNTHETIC,
    Device,
    JsonFile,
    Repeats,
    Workload,
    flop,
    peak_rate,
    run,
    timed,
    write,
)
from pfl.core.config import Execution, Precision
from pfl.engine.device import computes_in, numerics, peak_memory, resolve_device
from pfl.engine.simulation import Simulation
from pfl.engine.stacked import StackedBackend
from pfl.run.simulate import simulate_configs

WORK = {
    "lenet5_bn": Workload(dataset=SYNTHETIC),
    "resnet8, 40 clients": Workload(
        dataset=SYNTHETIC,
        model="resnet8",
        clients=40,
        participation=1.0,
        epochs=1,  # all clients have the same number of steps, so more epochs only repeat the work
        partition="dirichlet_client:0.1,size=500,test_size=100",
    ),
}
PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "bf16")

WARM_UP = 5  # rounds, in which most of the possible step shapes occur
SHOWN = 8  # number of kernels, and of the host's operations


def main(
    seeds: Annotated[int, typer.Option(help="Seeds of a trial in one stack.")] = 3,
    trials: Annotated[int, typer.Option(help="Trials of a cell in one stack, with all their seeds.")] = 4,
    rounds: Annotated[int, typer.Option(min=2, help="Rounds of the pFedSim cell.")] = 200,
    epochs: Annotated[int | None, typer.Option(help="Local epochs; by default 5, of ResNet-8 1.")] = None,
    repeats: Repeats = 5,
    device: Device = "cuda",
    log: Annotated[Path, typer.Option(help="What is printed is also written here.")] = Path(
        "reports/engineering/speed/gpu.log"
    ),
    json_file: JsonFile = None,
) -> None:
    """Print samples per second by stack size, memory, why the device waits, and seconds of a cell."""
    place = resolve_device(device)
    fit = [precision for precision in PRECISIONS if computes_in(precision, place)]
    with log.open("w", encoding="utf-8") as file:

        def say(line: str) -> None:
            print(line, flush=True)
            file.write(line + "\n")
            file.flush()

        peaks = limits(place, fit)
        for precision, peak in peaks.items():
            say(f"device: {peak / 1e12:.1f} TFLOP/s in a matrix product in {precision}")
        for precision in PRECISIONS:
            if precision not in fit:
                say(f"{precision}: not supported here")
        figures: dict[str, Any] = {"peak_flop_per_second": peaks}
        work = figures["work"] = {}
        cells = figures["cell_seconds"] = {}
        for name, workload in WORK.items():
            own = dataclasses.replace(workload, epochs=epochs or workload.epochs)
            rates = textbook_rates(own, repeats, place)
            say(f"{name}, textbook: {statistics.median(rates):,.0f} samples/s")
            work[name] = {"textbook": rates}
            for precision, peak in peaks.items():
                stacks = [(1, 1), (1, seeds), (trials, seeds)]
                in_precision = dataclasses.replace(own, precision=precision)
                work[name][precision] = measure(name, in_precision, stacks, rates, repeats, place, peak, say)
                write(json_file, WORK["lenet5_bn"], figures, device=device)  # keeps what has been measured
        for precision in fit:
            cell = dataclasses.replace(
                WORK["lenet5_bn"],
                method="pfedsim",
                rounds=rounds,
                epochs=epochs or WORK["lenet5_bn"].epochs,
                eval_every=rounds // 10 or 1,
                precision=precision,
            )
            first, later, whole = cell_seconds(cell, seeds, device)
            cells[precision] = whole
            say(f"a pFedSim cell of {rounds} rounds and {seeds} seeds in {precision}: {whole:.1f} s")
            say(f"  {first:.1f} s up to the first evaluation, then {later:.2f} s from one to the next")
            write(json_file, WORK["lenet5_bn"], figures, device=device)


def limits(device: torch.device, precisions: list[Precision]) -> dict[Precision, float]:
    """FLOP per second of a matrix product in each precision, the best of several."""
    size = 4096 if device.type == "cuda" else 512
    peaks = {}
    for precision in precisions:
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        with numerics(precision):
            peaks[precision] = peak_rate(size, device, dtype)
    return peaks


def textbook_rates(workload: Workload, repeats: int, device: torch.device) -> list[float]:
    """Training samples per second of the textbook loop, on the device, in each of ``repeats`` rounds."""
    plain = workload.simulation(str(device), "loop")
    textbook = TextbookFedAvg(
        copy.deepcopy(plain.program.net), workload.data, workload.split, workload.batch_size
    )
    participants = plain.runs[0].server.sample_clients().tolist()
    return [textbook_round(textbook, participants, workload)["training"] for _ in range(repeats + 1)][1:]


def measure(
    name: str,
    workload: Workload,
    stacks: list[tuple[int, int]],
    textbook: list[float],
    repeats: int,
    device: torch.device,
    peak: float,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Training samples per second of local training and bytes of memory by stack, and the profile of the
    largest stack."""
    title = f"{name}, {workload.precision}"
    usual = statistics.median(textbook)
    results: dict[str, Any] = {"stacks": {}}
    for trials, seeds in stacks:
        stack = workload.simulation(str(device), "stacked", range(seeds), trials)
        here = results["stacks"][f"{trials} trials x {seeds} seeds"] = rounds_of(stack, repeats)
        tell(say, f"{title}, {trials} trials x {seeds} seeds", here, usual)
    results["share_of_peak"] = statistics.median(here["samples_per_second"]) * flop(workload) / peak
    say(f"  {results['share_of_peak']:.2%} of the device's peak")
    with numerics(workload.precision):
        results["profile"] = profiled(stack, say)
    stack.backend = StackedBackend()
    unrecorded = results["stacks"]["the same without CUDA graphs"] = rounds_of(stack, repeats)
    tell(say, f"{title}, the same without CUDA graphs", unrecorded, usual)
    return results


def rounds_of(simulation: Simulation, repeats: int) -> dict[str, Any]:
    """Samples per second of local training in ``repeats`` rounds after a warm-up, and peak bytes."""
    device = simulation.federation.device
    rates = []
    with numerics(simulation.config.precision):
        for repeat in range(-WARM_UP, repeats):
            if repeat == 0 and device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(device)
            samples, seconds = simulation.samples, simulation.training_seconds
            simulation.advance()
            if repeat >= 0:
                trained = simulation.samples - samples
                rates.append(trained / (simulation.training_seconds - seconds))
    return {"samples_per_second": rates, "bytes": peak_memory(device)}


def tell(say: Callable[[str], None], what: str, result: dict[str, Any], textbook: float) -> None:
    rate = statistics.median(result["samples_per_second"])
    speed = f"{rate:,.0f} samples/s, {rate / textbook:.1f} times the textbook loop"
    say(f"{what}: {speed}, {result['bytes'] / 1e6:,.0f} MB")


def profiled(simulation: Simulation, say: Callable[[str], None]) -> dict[str, Any]:
    """Profile of a round: its seconds, the device's busy seconds, and the largest parts of device and host.

    The device is idle for the rest; the host's largest parts show why.
    """
    cuda = [ProfilerActivity.CUDA] if simulation.federation.device.type == "cuda" else []
    with profile(activities=[ProfilerActivity.CPU, *cuda]) as profiler:
        seconds = timed(simulation.advance)
    kernels: Counter[str] = Counter()
    host: Counter[str] = Counter()
    for event in profiler.events():
        if event.device_type == DeviceType.CPU:
            host[event.name] += event.self_cpu_time_total / 1e6
        elif not event.is_user_annotation:
            kernels[event.name] += event.time_range.elapsed_us() / 1e6
    busy = sum(kernels.values())
    say(f"  a round takes {seconds:.3f} s under the profiler; the device is busy for {busy / seconds:.0%}")
    for place, parts in (("device", kernels), ("host", host)):
        for name, spent in parts.most_common(SHOWN):
            say(f"    {place}: {spent / seconds:6.1%}  {name[:90]}")
    largest = {"device": dict(kernels.most_common(SHOWN)), "host": dict(host.most_common(SHOWN))}
    return {"seconds": seconds, "busy_seconds": busy, **largest}


def cell_seconds(cell: Workload, seeds: int, device: str) -> tuple[float, float, float]:
    """Seconds of a cell with all seeds up to its first evaluation, from one to the next, and as a whole."""
    evaluated = []

    def note(round: int, *_: object) -> None:
        if round % cell.eval_every == 0:
            evaluated.append(time.perf_counter())

    began = time.perf_counter()
    execution = Execution(device=device, backend="stacked")
    simulate_configs([cell.config], cell.data, cell.split, tuple(range(seeds)), execution, note)
    later = [after - before for before, after in pairwise(evaluated)]
    return evaluated[0] - began, statistics.median(later), time.perf_counter() - began


if __name__ == "__main__":
    run(main)
