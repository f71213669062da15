"""Sweeps on a cluster that somebody else started: several nodes on shared storage, and what is refused."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from pfl.trials import commit
from pipeline.nodes import lacking
from tests.pipeline.running import BIN, checkpoints, finished, results, rows, wait_until, workers

pytestmark = pytest.mark.slow

TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
NO_TOKEN = {"RAY_AUTH_MODE": "disabled"}


class Cluster:
    """A head node that runs no trials, and nodes of one CPU each, all of them processes of this machine.

    Args:
        scratch: each node has its own home and working directory there, as another machine would.
    """

    def __init__(self, scratch: Path, access: dict[str, str]):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self._scratch = scratch
        self._access = access
        self._nodes: list[subprocess.Popen[bytes]] = []
        port = self.address.rpartition(":")[2]
        self._start("--head", f"--port={port}", "--num-cpus=0", "--include-dashboard=false")

    def add_node(self, *through: str) -> psutil.Process:
        """A node of one CPU; ``through`` is a command that starts another."""
        return self._start(f"--address={self.address}", "--num-cpus=1", through=through)

    def stop(self) -> None:
        for node in self._nodes:
            if node.poll() is None:
                kill(psutil.Process(node.pid))
            node.wait()

    @property
    def lives(self) -> bool:
        return self._nodes[0].poll() is None

    def _start(self, *options: str, through: Sequence[str] = ()) -> psutil.Process:
        home = self._scratch / f"node-{len(self._nodes)}"
        home.mkdir()
        few = ("--object-store-memory=83886080", "--min-worker-port=0", "--max-worker-port=0")
        node = subprocess.Popen(
            [*through, BIN / "ray", "start", "--block", "--node-ip-address=127.0.0.1", *few, *options],
            cwd=home,
            env={**os.environ, "HOME": str(home), "RAY_USAGE_STATS_ENABLED": "0", **self._access},
            stdout=(home / "log").open("w"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._nodes.append(node)
        wait_until(lambda: "Ray runtime started" in (home / "log").read_text())
        return psutil.Process(node.pid)


def kill(node: psutil.Process) -> None:
    """End a node as a power cut would: all of its processes at once."""
    for process in (node, *node.children(recursive=True)):
        process.kill()


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[dict[str, str]], Cluster]]:
    """Starts a cluster; at the end all of its processes are gone."""
    started = []

    def start(access: dict[str, str]) -> Cluster:
        started.append(Cluster(tmp_path_factory.mktemp("cluster"), access))
        return started[-1]

    yield start
    for each in started:
        each.stop()


def without(folder: Path) -> list[str]:
    """A command that starts another which does not see what is in ``folder``, as on a machine of its own;
    empty where the system lets nobody do that.
    """
    folder.mkdir(exist_ok=True)
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    command += ['mount -t tmpfs none "$0" && exec "$@"', str(folder)]
    possible = shutil.which("unshare") and not subprocess.run([*command, "true"], check=False).returncode
    return command if possible else []


def numbers() -> dict[str, dict]:
    """All that was computed, by key; neither clock nor machine is in it."""
    return {row["key"]: row["metrics"] for row in rows()}


def test_a_sweep_on_several_nodes_survives_one_and_ends_with_the_results_of_a_single_machine(
    start, edit, cluster, tmp_path
):
    edit("rounds: 2", "rounds: 80")
    edit("seeds: [0, 1]", "seeds: [0]")
    edit("trials: 0", "trials: 2")
    joined = cluster(TOKEN)
    elsewhere = without(tmp_path / "of-the-driver")
    first, _ = joined.add_node(*elsewhere), joined.add_node(*elsewhere)
    process = start(RAY_ADDRESS=joined.address, TMPDIR=str(tmp_path / "of-the-driver"), **TOKEN)
    wait_until(lambda: rows() and checkpoints() and workers(first))
    kill(first)
    finished(process)
    assert joined.lives, "a sweep has stopped a cluster that is not its own"
    assert [cell["status"] for cell in results()["cells"]] == ["done", "done"]
    assert not list(Path(".sweeps/trials").iterdir())
    on_two_nodes, chosen = numbers(), [cell["selected"]["params"] for cell in results()["cells"]]

    shutil.rmtree(".sweeps")
    shutil.rmtree("results")
    finished(start())
    assert numbers() == on_two_nodes
    assert [cell["selected"]["params"] for cell in results()["cells"]] == chosen


def refused(process: subprocess.Popen[str]) -> str:
    """What a sweep has said that ended with one line."""
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 2, said
    assert "Traceback" not in said
    return said


def test_a_cluster_that_does_not_answer_is_one_line(start):
    said = refused(start(RAY_ADDRESS="127.0.0.1:1"))
    assert "RAY_ADDRESS: 127.0.0.1:1 is not accepted; expected the address of a running cluster" in said


def test_a_cluster_that_anybody_may_use_is_refused(start, cluster):
    open_to_all = cluster(NO_TOKEN)
    said = refused(start(RAY_ADDRESS=open_to_all.address, **TOKEN))
    assert "expected a cluster started with RAY_AUTH_MODE=token (see docs/cluster.md)" in said


def test_a_wrong_token_and_nodes_without_the_folder_are_told(start, cluster, prepared):
    joined = cluster(TOKEN)
    wrong = start(RAY_ADDRESS=joined.address, **{**TOKEN, "RAY_AUTH_TOKEN": "0" * 64})
    assert "expected a cluster that takes this user's token" in refused(wrong)
    elsewhere = without(prepared)
    if not elsewhere:
        pytest.skip("this machine hides no folder from a process")
    joined.add_node(*elsewhere)
    said = refused(start(RAY_ADDRESS=joined.address, **TOKEN))
    assert f"expected one with the folder {prepared} of the sweep, on storage that all nodes share" in said


def test_a_node_with_other_sources_is_told(tmp_path):
    (tmp_path / "mark").touch()
    assert lacking(tmp_path / "mark", commit()["sources"]) is None
    assert lacking(tmp_path / "mark", "0" * 64) == "the sources of the sweep"
