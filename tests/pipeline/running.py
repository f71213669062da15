"""Starting, watching and ending commands that run as processes of their own, and what they leave."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

BIN = Path(sys.executable).parent
LOCAL = Path(".sweeps/ledger/small.jsonl")
PUBLISHED = Path("results/ledger/small.jsonl")
NOT_INHERITED = ("DATA_SOURCE", "RAY_ADDRESS", "MLFLOW_TRACKING_URI", "MLFLOW_DISABLE_TELEMETRY")


def environment_of(root: Path) -> dict[str, str]:
    """The environment of commands that run the code of a checkout."""
    inherited = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    return {**inherited, "PATH": path, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}


def finished(process: subprocess.Popen[str]) -> str:
    """What a sweep that ended well has said."""
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    return said


def results() -> dict:
    return json.loads(Path("results/small/results.json").read_text())


def workers(process: subprocess.Popen[str] | psutil.Process) -> list[psutil.Process]:
    """The processes below another in which trials run."""
    return [
        child
        for child in psutil.Process(process.pid).children(recursive=True)
        if (command := command_of(child)).startswith("ray::") and "train" in command
    ]


def command_of(process: psutil.Process) -> str:
    """Its command line; "" where it has ended, as compilers do at any moment."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def wait_until(condition: Callable[[], object], seconds: float = 240) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.2)


def has_ended(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def kill_all(pid: int) -> None:
    """End a process and everything below it at once, as a power cut would."""
    try:
        head = psutil.Process(pid)
        family = [head, *head.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in family:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    wait_until(lambda: all(map(has_ended, family)), seconds=30)


def checkpoints() -> list[Path]:
    return list(Path(".sweeps/trials").glob("small/*/checkpoint.pt"))


def rows() -> list[dict]:
    return json_lines(LOCAL)


def json_lines(file: Path) -> list[Any]:
    """The values of a file's lines; none where there is no file."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def csv_lines(source: Path | str) -> list[dict[str, str]]:
    """The lines of a CSV file, or of one's content, by heading."""
    return list(csv.DictReader((source.read_text() if isinstance(source, Path) else source).splitlines()))
