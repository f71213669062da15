"""Sweeps on a real Ray: processes are killed, sweeps are stopped, and a cluster is joined."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from pipeline import stages

pytestmark = pytest.mark.slow

BIN = Path(sys.executable).parent
ROUNDS_OF_A_MINUTE = 3000


@pytest.fixture
def prepared(project: Path, edit: Callable[[str, str], None]) -> Path:
    """A project with data and partitions of a small table: 2 cells of 2 seeds, no search."""
    edit('  two: "pathological:2"\n', "")
    edit("trials: 4", "trials: 0")
    stages.download("small")
    stages.partition("small")
    return project


@pytest.fixture
def start(prepared: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a sweep as a process of its own."""
    running = []

    def begin(**environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [BIN / "pfl", "stage", "sweep", "small"],
            cwd=prepared,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        running.append(process)
        return process

    yield begin
    for process in running:
        process.kill()


def finished(process: subprocess.Popen[str]) -> str:
    """What a sweep that ended well has said."""
    said, _ = process.communicate(timeout=180)
    assert process.returncode == 0, said
    return said


def results() -> dict:
    return json.loads(Path("results/small/results.json").read_text())


def workers(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The processes in which trials of a sweep run."""
    return [
        child
        for child in psutil.Process(process.pid).children(recursive=True)
        if child.cmdline() and child.cmdline()[0].startswith("ray::") and "train" in child.cmdline()[0]
    ]


def wait_until(condition: Callable[[], object], seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.2)


def checkpoints() -> list[Path]:
    return list(Path(".sweeps/trials").glob("*/checkpoint.pt"))


def rows() -> list[dict]:
    path = Path(".sweeps/ledger/small.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_table_is_run_entered_and_then_served(start):
    said = finished(start())
    assert "4 trials run, 0 out of the ledger" in said
    assert [cell["status"] for cell in results()["cells"]] == ["done", "done"]
    assert all(row["hardware"]["threads"] == 1 for row in rows())
    assert len(json.loads(Path("results/small/mlflow.json").read_text())["cells"]) == 2
    assert not list(Path(".sweeps/trials").iterdir())
    assert "0 trials run, 4 out of the ledger" in finished(start())


def test_a_trial_whose_process_is_killed_goes_on_from_its_checkpoint(start, edit):
    edit("rounds: 2", "rounds: 300")
    process = start()
    wait_until(checkpoints)
    victims = workers(process)
    assert victims
    for victim in victims:
        victim.kill()
    finished(process)
    assert [cell["status"] for cell in results()["cells"]] == ["done", "done"]


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_sweep_ends_in_seconds_and_leaves_nothing_behind(start, edit, sent):
    edit("rounds: 2", f"rounds: {ROUNDS_OF_A_MINUTE}")
    process = start()
    wait_until(checkpoints)
    family = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, sent)
    said, _ = process.communicate(timeout=15)
    assert process.returncode == 130, said
    assert "nothing that is done is run again" in said
    assert "Traceback" not in said
    _, alive = psutil.wait_procs(family, timeout=15)
    assert not alive


def test_after_kill_9_no_trial_runs_on_and_the_next_sweep_does(start, edit):
    edit("rounds: 2", "rounds: 300")
    process = start()
    wait_until(rows)
    running = workers(process)
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(running, timeout=30)
    assert not alive
    done = len(rows())
    assert f"{4 - done} trials run, {done} out of the ledger" in finished(start())


@pytest.fixture
def cluster() -> Iterator[dict[str, str]]:
    """A running cluster of somebody else's, as the environment that leads to it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    access = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64, "RAY_USAGE_STATS_ENABLED": "0"}
    head = subprocess.Popen(
        [
            *(BIN / "ray", "start", "--head", "--block", "--num-cpus=2", "--include-dashboard=false"),
            *("--node-ip-address=127.0.0.1", f"--port={address.rpartition(':')[2]}"),
        ],
        env={**os.environ, **access},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    yield {"RAY_ADDRESS": address, **access}
    assert head.poll() is None, "a sweep has stopped a cluster that is not its own"
    for process in (*psutil.Process(head.pid).children(recursive=True), head):
        process.kill()
    head.wait()


def test_ray_address_joins_a_running_cluster(start, cluster):
    wait_until(lambda: _answers(cluster["RAY_ADDRESS"]))
    assert "4 trials run" in finished(start(**cluster))


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as connection:
        return connection.connect_ex((host, int(port))) == 0


def test_a_cluster_that_does_not_answer_is_one_line(start):
    process = start(RAY_ADDRESS="127.0.0.1:1")
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 2, said
    assert "RAY_ADDRESS: 127.0.0.1:1 is not accepted; expected the address of a running cluster" in said
    assert "Traceback" not in said
