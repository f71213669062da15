"""Where the time of a training step goes, and how far it is from the core's peak.

``python -m benchmarks.breakdown``. Operations are timed by torch's profiler; the rest of a step's time
without the profiler is Python and dispatch. FLOP are counted on the plain network, a multiply-add as two; the
peak is that of a large matrix product on one thread.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from typing import Annotated, Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
import typer
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.workload import JsonFile, Repeats, Workload, run, timed, write
from pfl.engine import loop
from pfl.engine.local_training import SGD
from pfl.models import MODELS

KINDS = {
    "loading": "loading",
    "optimiser": "optimiser",
    "fused block": "(?i)block",
    "convolution": "conv",
    "pooling": "pool",
    "batch norm": "batch_norm",
    "ReLU": "relu|threshold|clamp_min",
    "linear": r"linear|addmm|::mm$|::t$",
    "loss": "softmax|nll|cross_entropy",
}
"""Kinds of operations, each with a pattern for their names or for those of containing operations."""


def main(
    model: Annotated[list[str] | None, typer.Option(help="See `pfl models`; may be repeated.")] = None,
    repeats: Repeats = 5,
    json_file: JsonFile = None,
) -> None:
    """Print milliseconds by kind of operation in a step, FLOP, and the share of the core's peak."""
    torch.set_num_threads(1)
    workload = Workload(epochs=1)
    peak = peak_rate()
    print(f"one core's peak: {peak / 1e9:.0f} GFLOP/s in a matrix product")
    models = {}
    for name in model or ("lenet5_bn", "cnn4", "resnet8"):
        models[name] = measured = measure(dataclasses.replace(workload, model=name), repeats)
        step = measured["step_seconds"]
        measured["share_of_peak"] = measured["flop"] * workload.batch_size / step / peak
        print(
            f"{name}: {1e3 * step:.2f} ms per step of {workload.batch_size} images, "
            f"{measured['flop'] / 1e6:.1f} MFLOP per image, {measured['share_of_peak']:.0%} of the peak"
        )
        for kind, seconds in sorted(measured["parts"].items(), key=lambda part: -part[1]):
            print(f"  {kind:<20} {1e3 * seconds:6.3f} ms  {seconds / step:4.0%}")
    write(json_file, workload, {"peak_flop_per_second": peak, "models": models})


def peak_rate(
    size: int = 2048, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32
) -> float:
    """FLOP per second of the best of six products of square matrices."""
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    return max(2 * size**3 / timed(lambda: torch.mm(a, b)) for _ in range(6))


def measure(workload: Workload, repeats: int) -> dict[str, Any]:
    """Seconds of a step and of its parts, and FLOP of an image, forward and backward."""
    simulation = workload.simulation()
    simulation.advance()

    def round_seconds() -> float:
        """Seconds of local training for one batch."""
        samples, seconds = simulation.samples, simulation.training_seconds
        simulation.advance()
        trained = simulation.samples - samples
        return (simulation.training_seconds - seconds) * workload.batch_size / trained

    step = sorted(round_seconds() for _ in range(repeats))[repeats // 2]
    samples = simulation.samples
    with (
        patch.object(loop, "_batch", record_function("loading")(loop._batch)),
        patch.object(SGD, "step", record_function("optimiser")(SGD.step)),
        profile(activities=[ProfilerActivity.CPU]) as profiled,
    ):
        simulation.advance()
    parts: Counter[str] = Counter()
    for event in profiled.events():
        parts[_kind(event)] += event.self_cpu_time_total / 1e6
    steps = (simulation.samples - samples) / workload.batch_size
    seconds = {kind: parts[kind] / steps for kind in (*KINDS, "other operations") if parts[kind]}
    seconds["Python and dispatch"] = max(step - sum(seconds.values()), 0.0)
    return {"step_seconds": step, "parts": seconds, "flop": flop(workload)}


def flop(workload: Workload) -> float:
    """FLOP of one image in a training step."""
    data = workload.data
    network = MODELS[workload.model](data.shape, len(data.classes))
    x, y = torch.zeros(workload.batch_size, *data.shape), torch.zeros(workload.batch_size, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        F.cross_entropy(network(x), y).backward()
    return float(counter.get_total_flops()) / workload.batch_size


def _kind(event: Any) -> str:
    """The kind of an event: its own, or that of an event that contains it. Marks precede names."""
    names = []
    place = event
    while place is not None:
        names.append(place.name)
        place = place.cpu_parent
    for mark in ("loading", "optimiser"):
        if mark in names:
            return mark
    for name in names:
        for kind, pattern in KINDS.items():
            if re.search(pattern, name):
                return kind
    return "other operations"


if __name__ == "__main__":
    run(main)
