"""How long ``pfl`` takes before it answers, or before its first training step.

``python -m benchmarks.startup``. Each command in turn, in its own process; also a bare ``import torch``.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.workload import JsonFile, Repeats, Workload, run, write

FIRST_STEP = """
import json, os, sys
from pfl.engine import loop
train = loop.LoopBackend.train
def first(*arguments):
    train(*arguments)
    large = "torchvision sklearn scipy sympy torch._dynamo pandas matplotlib ray mlflow".split()
    print(json.dumps([name for name in large if name in sys.modules]), flush=True)
    os._exit(0)
loop.LoopBackend.train = first
from pfl.cli import main
main()
"""
"""Runs ``pfl`` until one client has trained for an epoch, and prints which large packages it imported."""

PFL = [sys.executable, "-m", "pfl"]
ONE_CLIENT = ["run", "--dataset", "cifar10", "--clients", "100", "--participation", "0.01", "--epochs", "1"]
COMMANDS = {
    "import torch": [sys.executable, "-c", "import torch"],
    "pfl run, first step": [sys.executable, "-c", FIRST_STEP, *ONE_CLIENT],
    "pfl --help": [*PFL, "--help"],
    "pfl run --help": [*PFL, "run", "--help"],
    "pfl methods": [*PFL, "methods"],
    "pfl datasets": [*PFL, "datasets"],
    "pfl tables": [*PFL, "tables"],
    "an unknown method": [*PFL, "run", "--method", "fedag"],
    "a number out of range": [*PFL, "run", "--lr", "-1"],
}


def main(repeats: Repeats = 5, json_file: JsonFile = None) -> None:
    """Print the median seconds of each command."""
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    imported: list[str] = []
    for repeat in range(repeats + 1):
        for name, command in COMMANDS.items():
            took, output = ran(command)
            if repeat:
                seconds[name].append(took)
            if "first step" in name:
                imported = json.loads(output.splitlines()[-1])
    for name, values in seconds.items():
        print(f"{name:<24} {statistics.median(values):6.2f} s")
    print(f"of the larger packages the first step needs {', '.join(imported) or 'torch alone'}")
    figures: dict[str, Any] = {"seconds": seconds, "imported": imported}
    write(json_file, Workload(), figures)


def ran(command: list[str]) -> tuple[float, str]:
    """Seconds of a command, and what it printed."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    began = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return time.perf_counter() - began, done.stdout


if __name__ == "__main__":
    run(main)
