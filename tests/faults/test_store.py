"""An MLflow store whose making was cut off."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pipeline.trackers.mlflow import MLflowTracker
from tests.pipeline.running import wait_until

pytestmark = pytest.mark.slow

OPEN = """
import sys
from pathlib import Path
from pipeline.trackers.mlflow import MLflowTracker
MLflowTracker(Path(sys.argv[1]), "fake")
"""


def test_a_store_whose_making_was_killed_is_made_again(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    process = subprocess.Popen([sys.executable, "-c", OPEN, tmp_path], stderr=subprocess.DEVNULL)
    wait_until(lambda: any(file.stat().st_size for file in tmp_path.glob("mlflow.db*")))
    process.kill()
    process.wait()
    assert not (tmp_path / "mlflow.db").exists()
    MLflowTracker(tmp_path, "fake")
    assert [file.name for file in tmp_path.glob("mlflow.db*")] == ["mlflow.db"]
