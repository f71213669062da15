"""What is in MLflow is there once, whatever is run again."""

from __future__ import annotations

from threading import Thread

import pytest
from mlflow import MlflowClient

from pfl.core.files import folder_lock
from pipeline.store import mlflow_client
from pipeline.store.mlflow_store import MLflowStore
from tests.pipeline.fake_results import (
    cell_of,
    diverge,
    fail,
    failed_row,
    fake_results,
    ledger_row,
    record_of,
    results_of,
)
from tests.pipeline.store.tracking.entering import (
    CELL,
    client_of,
    enter,
    no_space_left,
    parent_of,
    runs_of,
    trials_of,
)


def test_entering_everything_again_adds_nothing(root):
    results = fake_results(methods=2, settings=1, seeds=2)
    enter(results, root)
    before = {run.info.run_id for run in runs_of(root)}
    enter(results, root)
    assert {run.info.run_id for run in runs_of(root)} == before


def test_a_run_that_a_kill_left_behind_is_entered_anew(root, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "set_terminated", lambda *_: None)
        patch.setattr(MlflowClient, "log_text", no_space_left)
        with pytest.raises(OSError, match="no space left"):
            MLflowStore(root, "fake").trial(CELL, record_of(ledger_row(CELL)))
    assert [run.info.status for run in trials_of(root)] == ["RUNNING"]
    MLflowStore(root, "fake").trial(CELL, record_of(ledger_row(CELL)))
    assert [run.info.status for run in trials_of(root)] == ["FINISHED"]


def test_a_killed_sweep_leaves_no_cell_running(root):
    MLflowStore(root, "fake").trial(CELL, record_of(ledger_row(CELL)))
    assert parent_of(root).info.status == "SCHEDULED"


def test_a_failed_trial_keeps_its_cause_until_it_succeeds(root):
    row = ledger_row(CELL)
    store = MLflowStore(root, "fake")
    store.trial(CELL, record_of(failed_row(row, "out of memory")))
    (trial,) = trials_of(root)
    assert (trial.info.status, trial.data.tags["error"]) == ("FAILED", "out of memory")
    store.trial(CELL, record_of(row))
    (trial,) = trials_of(root)
    assert trial.info.status == "FINISHED"


def test_a_diverged_trial_is_a_failure_that_is_entered_once(root):
    row = ledger_row(CELL)
    row["metrics"]["diverged_at"] = 3
    MLflowStore(root, "fake").trial(CELL, record_of(row))
    (first,) = trials_of(root)
    MLflowStore(root, "fake").trial(CELL, record_of(row))
    assert first.info.status == "FAILED"
    assert [run.info.run_id for run in trials_of(root)] == [first.info.run_id]


def test_a_failed_cell_is_a_failed_run(root):
    results = fake_results(methods=2, settings=1, seeds=1)
    entry = cell_of(results, "cifar10-0.1/local")
    store = MLflowStore(root, "fake")
    store.trial(entry["cell"], record_of(failed_row(entry["pinned"]["records"][0], "out of memory")))
    fail(entry["pinned"], 0)
    (cell,) = (one for one in results_of(results).cells if one.cell == entry["cell"])
    store.cell(cell)
    assert parent_of(root).info.status == "FAILED"


def test_a_cell_that_diverged_is_a_failed_run_with_its_parameters_and_its_duration(root):
    results = fake_results(methods=2, settings=1, seeds=1)
    entry = cell_of(results, "cifar10-0.1/local")
    diverge(entry["pinned"])
    (cell,) = (one for one in results_of(results).cells if one.cell == entry["cell"])
    MLflowStore(root, "fake").cell(cell)
    run = parent_of(root)
    assert (run.info.status, run.data.tags["status"]) == ("FAILED", "diverged")
    assert run.data.params["method"] == "local"
    seconds = entry["pinned"]["records"][0]["measured"]["wall_seconds"]
    assert run.info.end_time - run.info.start_time == pytest.approx(1000 * seconds, abs=1)
    assert run.data.metrics["wall_seconds"] == pytest.approx(seconds)


def test_a_deleted_experiment_comes_back(root):
    enter(fake_results(methods=2, settings=1, seeds=1), root)
    client = client_of(root)
    client.delete_experiment(client.get_experiment_by_name("fake").experiment_id)
    tracker = enter(fake_results(methods=2, settings=1, seeds=1), root)
    assert tracker.lost is None
    assert len(runs_of(root)) == 4


def test_runs_of_somebody_else_s_in_the_experiment_are_left_alone(root):
    enter(fake_results(methods=2, settings=1, seeds=1), root)
    client = client_of(root)
    client.create_run(client.get_experiment_by_name("fake").experiment_id)
    tracker = enter(fake_results(methods=2, settings=1, seeds=1), root)
    assert tracker.lost is None
    assert len(runs_of(root)) == 5


def test_a_store_that_another_process_is_creating_is_waited_for_and_used(tmp_path):
    database, partial = tmp_path / "mlflow.db", tmp_path / "mlflow.db.partial-1"
    second = Thread(target=mlflow_client.create, args=[database])
    with folder_lock(tmp_path):
        partial.write_text("of another process")
        second.start()
        second.join(0.5)
        partial.replace(database)
    second.join(60)
    assert database.read_text() == "of another process"
