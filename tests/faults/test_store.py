"""An MLflow store whose making was cut off."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.trackers.mlflow import MLflowTracker
from tests.faults.recovery import file_system
from tests.pipeline.running import wait_until

pytestmark = pytest.mark.slow

OPEN = """
import sys
from pathlib import Path
from pipeline.trackers.mlflow import MLflowTracker
MLflowTracker(Path(sys.argv[1]), "fake")
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return tmp_path


def test_a_store_whose_making_was_killed_is_made_again(root):
    process = subprocess.Popen([sys.executable, "-c", OPEN, root], stderr=subprocess.DEVNULL)
    wait_until(lambda: any(file.stat().st_size for file in root.glob("mlflow.db*")))
    process.kill()
    process.wait()
    assert not (root / "mlflow.db").exists()
    MLflowTracker(root, "fake")
    assert [file.name for file in root.glob("mlflow.db*")] == ["mlflow.db"]


def test_a_store_for_which_there_was_no_space_is_made_when_there_is(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    try:
        with file_system(tmp_path / "root", megabytes=8):
            (tmp_path / "root/filler").write_bytes(bytes(2**23 - 2**18))
            with pytest.raises(Exception, match="database or disk is full"):
                MLflowTracker(tmp_path / "root", "fake")
            (tmp_path / "root/filler").unlink()
            MLflowTracker(tmp_path / "root", "fake")
    except PermissionError as error:
        pytest.skip(str(error))
