"""An MLflow store that is locked, or whose making was cut off."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from pfl.trials import Record
from pipeline.store.tracking import Tracker
from tests.faults.recovery import file_system
from tests.pipeline.fake_results import ledger_row
from tests.pipeline.running import wait_until

pytestmark = pytest.mark.slow

CELL = "cifar10-0.1/fedavg"

OPEN = """
import sys
from pathlib import Path
from pipeline.store.tracking import Tracker
from pfl.trials import Record
from tests.pipeline.fake_results import ledger_row
record = Record.from_json(ledger_row("cifar10-0.1/fedavg"))
Tracker(Path(sys.argv[1]), "fake").trial(record.cell, record)
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
    tracker = Tracker(root, "fake")
    tracker.trial(CELL, Record.from_json(ledger_row(CELL)))
    assert tracker.lost is None
    assert [file.name for file in root.glob("mlflow.db*")] == ["mlflow.db"]


def test_a_store_for_which_there_was_no_space_is_made_when_there_is(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    try:
        with file_system(tmp_path / "root", megabytes=8):
            (tmp_path / "root/filler").write_bytes(bytes(2**23 - 2**18))
            tracker = Tracker(tmp_path / "root", "fake")
            tracker.trial(CELL, Record.from_json(ledger_row(CELL)))
            assert tracker.lost == "(sqlite3.OperationalError) database or disk is full"
            (tmp_path / "root/filler").unlink()
            tracker.catch_up()
            assert tracker.lost is None
    except PermissionError as error:
        pytest.skip(str(error))


def test_a_store_that_another_process_has_locked_receives_everything_afterwards(root, caplog):
    tracker = Tracker(root, "fake")
    tracker.trial(CELL, Record.from_json(ledger_row(CELL, seed=0)))
    lock = sqlite3.connect(root / "mlflow.db")
    lock.execute("BEGIN EXCLUSIVE")
    tracker.trial(CELL, Record.from_json(ledger_row(CELL, seed=1)))
    assert tracker.lost == "(sqlite3.OperationalError) database is locked"
    lock.close()
    tracker.save()
    assert tracker.lost is None
    assert len(tracker.run_ids()["cells"][CELL]["trials"]) == 2
    assert [record.name for record in caplog.records] == ["pipeline.store.tracking"] * 2
