"""A project with an MLflow store that has no runs yet."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from mlflow import MlflowClient


@pytest.fixture(scope="session")
def store(tmp_path_factory) -> Path:
    """An empty store: to make one takes seconds."""
    folder = tmp_path_factory.mktemp("store")
    MlflowClient(f"sqlite:///{folder / 'mlflow.db'}").search_experiments()
    return folder / "mlflow.db"


@pytest.fixture
def root(tmp_path, store, monkeypatch) -> Path:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    shutil.copy(store, tmp_path)
    return tmp_path
