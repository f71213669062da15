"""Run a command, and measure its whole tree of processes."""

from __future__ import annotations

import contextlib
import subprocess
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from pfl.core.errors import InvalidInput

MARK = "PFL_BENCHMARK_TREE"
"""Environment variable that all processes of a tree inherit, even those whose parent has ended."""
PAUSE = 0.5  # seconds between two samples of the tree
GRACE = 10.0  # seconds that processes may outlive the first one


@dataclass(frozen=True)
class Usage:
    """What a tree of processes used.

    Attributes:
        seconds: from the first process's start to its end.
        cpu_seconds: user and system time of all processes, up to the last sample of each.
        peak_memory_bytes: highest sum of their memory, in which a shared page counts once.
    """

    seconds: float
    cpu_seconds: float
    peak_memory_bytes: int


def run_tree(
    command: Sequence[str], environment: dict[str, str], cores: Sequence[int], log: Path, timeout: float
) -> Usage:
    """Run ``command`` on ``cores`` until it ends.

    Raises:
        InvalidInput: it fails, or exceeds ``timeout`` seconds.
    """
    mark = uuid.uuid4().hex
    cpu: dict[int, float] = {}
    peak = 0
    began = time.perf_counter()
    pinned = ["taskset", "--cpu-list", ",".join(map(str, cores)), *command]
    with log.open("w") as output:
        first = subprocess.Popen(
            pinned, env=environment | {MARK: mark}, stdout=output, stderr=subprocess.STDOUT, cwd=log.parent
        )
        try:
            while first.poll() is None:
                if time.perf_counter() - began > timeout:
                    raise InvalidInput("script", command[1], f"one that ends within {timeout:.0f} seconds")
                processes = members(mark)
                peak = max(peak, sum(map(_memory, processes)))
                cpu |= {each.pid: max(cpu.get(each.pid, 0.0), _cpu_seconds(each)) for each in processes}
                with contextlib.suppress(subprocess.TimeoutExpired):
                    first.wait(PAUSE)
            seconds = time.perf_counter() - began
        finally:
            _end(mark)
    if first.returncode:
        lines = log.read_text(errors="replace").strip().splitlines() or [""]
        raise InvalidInput("script", command[1], f"one that runs; {log} ends with: {lines[-1]}")
    return Usage(seconds, sum(cpu.values()), peak)


def members(mark: str) -> list[psutil.Process]:
    """The running processes of a tree."""
    processes = psutil.process_iter(["environ"])
    return [process for process in processes if (process.info["environ"] or {}).get(MARK) == mark]


def _memory(process: psutil.Process) -> int:
    """Bytes of a process, including its share of shared pages; 0 if it has ended."""
    with contextlib.suppress(psutil.Error):
        return int(process.memory_full_info().pss)
    return 0


def _cpu_seconds(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.Error):
        times = process.cpu_times()
        return float(times.user + times.system)
    return 0.0


def _end(mark: str) -> None:
    """Wait for the rest of a tree, and kill processes that do not end."""
    psutil.wait_procs(members(mark), GRACE)
    while alive := members(mark):
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(alive, PAUSE)
