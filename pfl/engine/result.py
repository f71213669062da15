"""The result of a simulation, with its hardware and versions."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pfl import kernels
from pfl.core.config import Execution
from pfl.core.version import VERSION
from pfl.engine.metrics import Measured, Metrics


@dataclass(frozen=True)
class Versions:
    """Software versions.

    Attributes:
        compiler: that of the CPU kernels, followed by ", without some kernels" if one could not be compiled
            or loaded; None without a compiler.
    """

    python: str
    torch: str
    pfl: str
    compiler: str | None = None


@dataclass(frozen=True)
class Hardware:
    """The hardware of a simulation.

    Attributes:
        threads: CPU threads.
        workers: processes that share the clients of a round.
        gpu: name of the GPU; None on a CPU.
    """

    cpu: str
    cores: int | None
    threads: int
    gpu: str | None
    device: str
    backend: str
    workers: int = 1


@dataclass(frozen=True)
class Result:
    """The result of a simulation with one seed.

    >>> (result,) = pfl.simulate("fedavg", clients=4, rounds=2, epochs=1, progress=False)
    >>> result.seed, len(result.metrics.per_client), result.measured.wall_seconds > 0
    (0, 4, True)

    Attributes:
        metrics: accuracies, curves, per-client accuracies and traffic.
        measured: time and memory.
        measurements: results of ``measure`` other than None, in the order of the rounds.
        labels: identify the run in frames and plots, for example by method and seed.
    """

    seed: int
    metrics: Metrics
    measured: Measured
    hardware: Hardware
    versions: Versions
    measurements: list[Any] = field(default_factory=list)
    labels: Mapping[str, Any] = field(default_factory=dict)


def hardware(execution: Execution, device: Any) -> Hardware:
    """The hardware that a simulation with this execution runs on."""
    import torch

    from pfl.engine.device import resolve_backend, workers_for

    return Hardware(
        cpu=_cpu_name(),
        cores=os.cpu_count(),
        threads=execution.threads,
        gpu=torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        device=device.type,
        backend=resolve_backend(execution.backend, device),
        workers=workers_for(execution, device),
    )


def versions() -> Versions:
    """The versions of the running software."""
    import torch

    return Versions(
        python=platform.python_version(),
        torch=torch.__version__,
        pfl=VERSION,
        compiler=kernels.compiler_used(),
    )


@cache
def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
