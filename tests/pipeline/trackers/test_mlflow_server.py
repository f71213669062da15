"""A sweep that is entered in an MLflow server, and killed in between."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from tests.pipeline.running import finished, rows, wait_until
from tests.pipeline.services import MlflowServer

pytestmark = pytest.mark.slow


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a tracking server."""
    with MlflowServer(tmp_path_factory.mktemp("server")) as server:
        yield server.address
        assert server.interfaces() == {"127.0.0.1"}


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
