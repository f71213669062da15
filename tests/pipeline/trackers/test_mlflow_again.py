"""What is in MLflow is there once, whatever is run again."""

from __future__ import annotations

from threading import Thread

import pytest
from mlflow import MlflowClient

from pfl.core.files import folder_lock
from pipeline.trackers.mlflow import create
from tests.pipeline.fake_results import diverge, fail, failed_row, fake_results, ledger_row
from tests.pipeline.trackers.entering import CELL, client_of, enter, entered, one_cell, parent_of, runs_of


def test_entering_everything_again_adds_nothing_also_beside_runs_of_somebody_else(root):
    results = fake_results(methods=2, settings=1, seeds=2)
    enter(results, root)
    client = client_of(root)
    client.create_run(client.get_experiment_by_name("fake").experiment_id)
    before = {run.info.run_id for run in runs_of(root)}
    assert enter(results, root).lost is None
    assert {run.info.run_id for run in runs_of(root)} == before


def test_a_run_that_was_written_in_part_is_entered_anew(root, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "set_terminated", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            entered(root, ledger_row(CELL))
    assert [run.info.status for run in runs_of(root, "final")] == ["RUNNING"]
    assert entered(root, ledger_row(CELL)).info.status == "FINISHED"
    assert parent_of(root).info.status == "SCHEDULED"  # no killed sweep leaves a cell running


def test_a_failed_run_keeps_its_cause_until_it_succeeds(root):
    row = ledger_row(CELL)
    run = entered(root, failed_row(row))
    assert (run.info.status, run.data.tags["error"]) == ("FAILED", "out of memory")
    assert entered(root, row).info.status == "FINISHED"


def test_a_diverged_run_is_a_failure_that_is_entered_once(root):
    row = ledger_row(CELL)
    row["metrics"]["diverged_at"] = 3
    first = entered(root, row)
    assert first.info.status == "FAILED"
    assert entered(root, row).info.run_id == first.info.run_id


def test_a_cell_that_failed_or_diverged_is_a_failed_run(root):
    results = one_cell(seeds=1)
    trial = results["cells"][0]["pinned"]
    diverge(trial)
    enter(results, root)
    run = parent_of(root)
    assert (run.info.status, run.data.tags["status"]) == ("FAILED", "diverged")
    assert run.data.params["method"] == "local"
    seconds = trial["records"][0]["measured"]["wall_seconds"]
    assert run.info.end_time - run.info.start_time == pytest.approx(1000 * seconds, abs=1)
    assert run.data.metrics["wall_seconds"] == pytest.approx(seconds)
    fail(trial, 0)
    enter(results, root)
    assert (parent_of(root).info.status, parent_of(root).data.tags["status"]) == ("FAILED", "failed")


def test_a_cell_whose_records_changed_has_their_numbers_and_parameters_and_all_runs(root):
    for lr, accuracy, finished in ((0.1, 70.0, "2026-11-20T10:00:00"), (0.2, 60.0, "2026-11-19T10:00:00")):
        results = one_cell(seeds=1)
        row = ledger_row("cifar10-0.1/local", accuracy=accuracy, lr=lr) | {"finished": finished}
        results["cells"][0]["pinned"]["records"] = [row]
        enter(results, root)
    parent = parent_of(root)
    assert parent.data.params["lr"] == "0.2"
    assert parent.data.metrics["final_accuracy"] == 60.0
    assert [run.data.tags["mlflow.parentRunId"] for run in runs_of(root, "final")] == [parent.info.run_id] * 2


def test_a_deleted_experiment_comes_back(root):
    enter(one_cell(seeds=1), root)
    client = client_of(root)
    client.delete_experiment(client.get_experiment_by_name("fake").experiment_id)
    assert enter(one_cell(seeds=1), root).lost is None
    assert len(runs_of(root)) == 2


def test_a_store_that_another_process_is_creating_is_waited_for_and_used(tmp_path):
    database, partial = tmp_path / "mlflow.db", tmp_path / "mlflow.db.partial-1"
    second = Thread(target=create, args=[database])
    with folder_lock(tmp_path):
        partial.write_text("of another process")
        second.start()
        second.join(0.5)
        partial.replace(database)
    second.join(60)
    assert database.read_text() == "of another process"
