"""A sweep that is entered in an MLflow server, and killed in between."""

from __future__ import annotations

import os
import socket
import subprocess
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from tests.pipeline.running import BIN, finished, rows, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A tracking server as docs/cluster.md starts it; its address."""
    folder = tmp_path_factory.mktemp("server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [
            *(BIN / "mlflow", "server", "--port", str(port), "--workers", "1"),
            *("--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}"),
            *("--artifacts-destination", str(folder / "artifacts")),
        ],
        cwd=folder,
        env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "PATH": f"{BIN}:{os.environ['PATH']}"},
        stdout=(folder / "log").open("w"),
        stderr=subprocess.STDOUT,
    )
    address = f"http://127.0.0.1:{port}"
    wait_until(lambda: _is_healthy(address))
    yield address
    family = [process, *psutil.Process(process.pid).children(recursive=True)]
    interfaces = {
        connection.laddr.ip
        for each in family
        for connection in psutil.Process(each.pid).net_connections()
        if connection.status == psutil.CONN_LISTEN
    }
    for each in family:
        each.kill()
    process.wait()
    assert interfaces == {"127.0.0.1"}


def _is_healthy(address: str) -> bool:
    try:
        return urllib.request.urlopen(f"{address}/health", timeout=5).status == 200
    except OSError:
        return False


def runs_of(server: str) -> list[Run]:
    client = MlflowClient(server)
    experiment = client.get_experiment_by_name("small")
    return list(client.search_runs([experiment.experiment_id])) if experiment else []


def test_a_server_has_every_run_once_also_after_a_kill(start, edit, server, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    edit("rounds: 2", "rounds: 120")
    process = start()
    wait_until(lambda: runs_of(server))
    process.kill()
    process.wait()
    finished(start())
    entered = runs_of(server)
    trials = Counter(run.data.tags["key"] for run in entered if "key" in run.data.tags)
    assert trials == Counter({row["key"]: 1 for row in rows()})
    assert len(entered) == len(trials) + 2
    assert {run.info.status for run in entered} == {"FINISHED"}
    final = next(run.info.run_id for run in entered if run.data.tags.get("phase") == "final")
    assert [file.path for file in MlflowClient(server).list_artifacts(final)] == ["per_client.csv"]
    assert not Path("mlflow.db").exists()

    finished(start())
    assert {run.info.run_id for run in runs_of(server)} == {run.info.run_id for run in entered}
