"""A project with an MLflow store that has no runs yet."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from mlflow import MlflowClient


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty store: to make one takes seconds."""
    database = tmp_path_factory.mktemp("store") / "mlflow.db"
    MlflowClient(f"sqlite:///{database}").search_experiments()
    return database


@pytest.fixture
def root(tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    shutil.copy(store, tmp_path)
    return tmp_path
