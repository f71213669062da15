"""A Ray cluster and an MLflow server, as docs/cluster.md starts them, as processes of this machine."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import psutil

from tests.pipeline.running import BIN, kill_all, wait_until

TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
NO_TOKEN = {"RAY_AUTH_MODE": "disabled"}


class Cluster:
    """A head node that runs no trials, and nodes of one CPU each. Outside of ``with``, all of them are gone.

    Args:
        scratch: each node has its own home and working directory there, as another machine would.
        access: the environment that says who may join.
    """

    def __init__(self, scratch: Path, access: dict[str, str] = TOKEN):
        self.address = f"127.0.0.1:{free_port()}"
        self._scratch = scratch
        self._access = access
        self._nodes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Cluster:
        port = self.address.rpartition(":")[2]
        self.head = self._start("--head", f"--port={port}", "--num-cpus=0", "--include-dashboard=false")
        return self

    def __exit__(self, *_: object) -> None:
        for node in self._nodes:
            kill_all(node.pid)
            node.wait()

    def add_node(self, *through: str) -> psutil.Process:
        """A node of one CPU; ``through`` is a command that starts another."""
        return self._start(f"--address={self.address}", "--num-cpus=1", through=through)

    def _start(self, *options: str, through: Sequence[str] = ()) -> psutil.Process:
        home = self._scratch / f"node-{len(self._nodes)}"
        home.mkdir(parents=True)
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


def without(folder: Path) -> list[str]:
    """A command that starts another which does not see what is in ``folder``, as on a machine of its own;
    empty where the system lets nobody do that.
    """
    folder.mkdir(exist_ok=True)
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    command += ['mount -t tmpfs none "$0" && exec "$@"', str(folder)]
    possible = shutil.which("unshare") and not subprocess.run([*command, "true"], check=False).returncode
    return command if possible else []


class MlflowServer:
    """A tracking server with database and artifacts in ``folder``; it runs inside ``with``, anew each time.

    Attributes:
        address: its URL.
        store: the URL of its database.
    """

    def __init__(self, folder: Path):
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._port = free_port()
        self.address = f"http://127.0.0.1:{self._port}"
        self.store = f"sqlite:///{folder / 'mlflow.db'}"

    def __enter__(self) -> MlflowServer:
        self._process = subprocess.Popen(
            [
                *(BIN / "mlflow", "server", "--host", "127.0.0.1", "--port", str(self._port)),
                *("--workers", "1", "--backend-store-uri", self.store),
                *("--artifacts-destination", str(self._folder / "artifacts")),
            ],
            cwd=self._folder,
            env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "PATH": f"{BIN}:{os.environ['PATH']}"},
            stdout=(self._folder / "log").open("ab"),
            stderr=subprocess.STDOUT,
        )
        wait_until(self._is_healthy)
        return self

    def __exit__(self, *_: object) -> None:
        kill_all(self._process.pid)
        self._process.wait()

    def _is_healthy(self) -> bool:
        try:
            return urllib.request.urlopen(f"{self.address}/health", timeout=5).status == 200
        except OSError:
            return False


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
