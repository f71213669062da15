"""The checks of a change of the GPU's code in one call, for a machine that is available for minutes.

``python -m benchmarks.gpu_checks OUT --before FOLDER``: the GPU's tests, `benchmarks.gpu` (with its profile)
of this code and of that in FOLDER, and the grid of `benchmarks.gpu_kernels`. A step that takes too long is
stopped, and what it has written is kept; it counts as a failure, except for the grid.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.workload import run

HERE = Path(__file__).parents[1]
TESTS, SPEED, GRID = "tests", "speed", "grid"
LIMITS = {TESTS: 4.0, SPEED: 3.0, GRID: 8.0}
"""The most minutes of each step."""


def main(
    out: Annotated[Path, typer.Argument(help="Folder for the logs and the figures.")],
    before: Annotated[Path | None, typer.Option(help="Checkout of the former code, to compare with.")] = None,
    minutes: Annotated[float, typer.Option(min=0, help="Time for all steps.")] = 9.0,
) -> None:
    """Run the steps in the order of their value, each with its output in OUT, and print how each ended."""
    end = time.monotonic() + 60 * minutes
    out = out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    steps = [(TESTS, HERE, TESTS), ("after", HERE, SPEED)]
    if before:
        steps.append(("before", before.resolve(), SPEED))
    failed = False
    for name, folder, kind in [*steps, (GRID, HERE, GRID)]:
        began = time.monotonic()
        outcome = step(
            command(kind, out / name), folder, out / f"{name}.txt", min(60 * LIMITS[kind], end - began)
        )
        failed |= outcome != "done" and (kind, outcome) != (GRID, "stopped")
        print(f"{name}: {outcome} after {time.monotonic() - began:.0f} s", flush=True)
    if failed:
        raise typer.Exit(1)


def command(kind: str, figures: Path) -> list[str]:
    """The command of a kind of step; ``figures`` is the name of its files without an ending."""
    files = ["--log", f"{figures}.log", "--json", f"{figures}.json"]
    arguments = {
        TESTS: ["pytest", "-m", "gpu", "-p", "no:xdist"],
        SPEED: ["benchmarks.gpu", *files],
        GRID: ["benchmarks.gpu_kernels"],
    }
    return [sys.executable, "-m", *arguments[kind]]


def step(command: list[str], folder: Path, output: Path, seconds: float) -> str:
    """Run a command with the code in ``folder``; how it ended: done, stopped after ``seconds``, or failed."""
    if seconds <= 0:
        return "stopped"
    with output.open("wb") as file:
        try:
            ended = subprocess.run(
                command,
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(folder)},
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return "stopped"
    return "done" if ended.returncode == 0 else f"failed with status {ended.returncode}"


if __name__ == "__main__":
    run(main)
