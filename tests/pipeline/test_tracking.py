"""What a sweep leaves in MLflow."""

from __future__ import annotations

import json
import logging
import shutil
from collections import Counter
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from pfl.errors import InvalidInput
from pipeline.protocol import Evaluation
from pipeline.tracking import Tracker, rebuild
from tests.pipeline.fake_results import cell_of, failed_row, fake_results, ledger_row, write_results

CELL = "cifar10-0.1/fedavg"


@pytest.fixture(scope="module")
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


def client_of(root: Path) -> MlflowClient:
    return MlflowClient(f"sqlite:///{root / 'mlflow.db'}")


def runs_of(root: Path) -> list[Run]:
    client = client_of(root)
    experiment = client.get_experiment_by_name("fake")
    return list(client.search_runs([experiment.experiment_id])) if experiment else []


def trials_of(root: Path) -> list[Run]:
    return [run for run in runs_of(root) if "key" in run.data.tags]


def parent_of(root: Path) -> Run:
    (parent,) = [run for run in runs_of(root) if "key" not in run.data.tags]
    return parent


def enter(results: dict, root: Path) -> Tracker:
    """What the driver of a sweep does."""
    tracker = Tracker(root, "fake")
    for entry in results["cells"]:
        for configuration in filter(None, (entry["pinned"], entry["selected"])):
            for row in configuration["rows"]:
                tracker.trial(entry["cell"], row, configuration["trial"])
        tracker.cell(entry, Evaluation())
    tracker.save()
    return tracker


# ---- what is entered -----------------------------------------------------------------------------------


def test_a_cell_is_a_parent_run_and_a_trial_its_child(root):
    enter(fake_results(methods=2, settings=1, seeds=2), root)
    parents = {run.info.run_id: run.info.run_name for run in runs_of(root) if "key" not in run.data.tags}
    assert sorted(parents.values()) == ["cifar10-0.1/local", "cifar10-0.1/pfedsim"]
    children = Counter(parents[run.data.tags["mlflow.parentRunId"]] for run in trials_of(root))
    assert children == {"cifar10-0.1/local": 2, "cifar10-0.1/pfedsim": 2}


def test_a_trial_has_flat_tags(root):
    row = ledger_row(CELL, seed=1)
    Tracker(root, "fake").trial(CELL, row, trial_number=0, from_ledger=True)
    (trial,) = trials_of(root)
    expected = {
        "table": "fake",
        "setting": "cifar10-0.1",
        "method": "fedavg",
        "row": "fedavg",
        "partition": row["partition"],
        "seed": "1",
        "phase": "final",
        "key": row["key"],
        "git_commit": row["commit"],
        "data_checksum": row["data_checksum"],
        "hardware": "Example CPU @ 2.60GHz, 4, 1, cpu, loop",
        "from_ledger": "true",
    }
    assert expected.items() <= trial.data.tags.items()


def test_a_row_of_an_edited_tree_is_tagged(root):
    row = ledger_row(CELL) | {"dirty": True}
    Tracker(root, "fake").trial(CELL, row)
    assert trials_of(root)[0].data.tags["git_commit"] == row["commit"] + "-dirty"


def test_accuracy_loss_and_bytes_are_entered_by_round(root):
    row = ledger_row(CELL)
    Tracker(root, "fake").trial(CELL, row)
    (trial,) = trials_of(root)
    for name, key in (("accuracy", "pooled"), ("loss", "loss")):
        history = client_of(root).get_metric_history(trial.info.run_id, name)
        rounds = row["metrics"]["rounds"]
        assert [(m.step, m.value) for m in history] == [
            (r["round"], r["post_aggregation"][key]) for r in rounds
        ]
    assert trial.data.metrics["bytes_up"] == row["metrics"]["bytes_up"]
    assert trial.data.metrics["wall_seconds"] == row["seconds"]


def test_a_run_has_few_metrics_and_all_parameters(root):
    row = ledger_row("cifar10-0.1/pfedsim")
    Tracker(root, "fake").trial(row["cell"], row)
    (trial,) = trials_of(root)
    assert len(trial.data.metrics) <= 12
    assert trial.data.params["pfedsim.rho"] == "0.5"
    assert trial.data.params["lr"] == "0.05"


def test_a_number_that_is_missing_is_left_out(root):
    row = ledger_row(CELL)
    row["metrics"]["rounds"][0]["train_loss"] = None
    Tracker(root, "fake").trial(CELL, row)
    history = client_of(root).get_metric_history(trials_of(root)[0].info.run_id, "train_loss")
    assert [metric.step for metric in history] == [10, 15, 20, 25, 30]


def test_a_trial_is_entered_in_one_request(root, monkeypatch):
    requests = count_requests(monkeypatch)
    Tracker(root, "fake").trial(CELL, ledger_row(CELL))
    assert len(requests) == 1


def test_more_metrics_than_a_request_takes_are_all_entered(root, monkeypatch):
    requests = count_requests(monkeypatch)
    Tracker(root, "fake").trial(CELL, ledger_row(CELL, rounds=1000))
    history = client_of(root).get_metric_history(trials_of(root)[0].info.run_id, "bytes_down")
    assert len(history) == 200
    assert max(requests) <= 1000


def count_requests(monkeypatch) -> list[int]:
    """The size of every request from now on."""
    requests: list[int] = []
    original = MlflowClient.log_batch

    def counted(self, run_id, metrics=(), params=(), tags=()):
        requests.append(len(metrics) + len(params) + len(tags))
        return original(self, run_id, metrics, params, tags)

    monkeypatch.setattr(MlflowClient, "log_batch", counted)
    return requests


def test_only_final_trials_keep_their_clients_accuracies(root):
    tracker = Tracker(root, "fake")
    tracker.trial(CELL, ledger_row(CELL, clients=3))
    tracker.trial(CELL, ledger_row(CELL, phase="search"), trial_number=0)
    client = client_of(root)
    files = {
        run.data.tags["phase"]: [file.path for file in client.list_artifacts(run.info.run_id)]
        for run in trials_of(root)
    }
    assert files == {"final": ["per_client.csv"], "search": []}
    final = next(run for run in trials_of(root) if run.data.tags["phase"] == "final")
    path = client.download_artifacts(final.info.run_id, "per_client.csv")
    assert Path(path).read_text().splitlines()[0] == "client,train,test,accuracy"
    assert len(Path(path).read_text().splitlines()) == 4


def test_the_partition_plot_is_with_the_cell(root):
    results = fake_results(methods=2, settings=1, seeds=1)
    results["cells"] = results["cells"][:1]
    write_results(results, root)
    enter(results, root)
    files = client_of(root).list_artifacts(parent_of(root).info.run_id)
    assert [file.path for file in files] == ["cifar10-0.1.svg"]


def test_a_concluded_cell_has_the_table_s_scores(root):
    results = fake_results(methods=2, settings=1, seeds=2, search=2)
    results["cells"] = [cell_of(results, "cifar10-0.1/local")]
    enter(results, root)
    parent = parent_of(root)
    rows = results["cells"][0]["pinned"]["rows"]
    mean = sum(row["metrics"]["accuracy"]["pooled"]["last"] for row in rows) / 2
    assert parent.data.metrics["accuracy"] == pytest.approx(mean)
    assert "selected_accuracy" in parent.data.metrics
    assert parent.data.tags["seeds"] == "0,1"
    assert (parent.info.status, parent.data.tags["status"]) == ("FINISHED", "done")


def test_a_cell_shows_the_scores_that_were_entered_last(root):
    new = fake_results(methods=2, settings=1, seeds=1)
    old = fake_results(methods=2, settings=1, seeds=1)
    for results, accuracy, finished in (
        (new, 70.0, "2026-11-20T10:00:00"),
        (old, 60.0, "2026-11-19T10:00:00"),
    ):
        row = ledger_row("cifar10-0.1/local", accuracy=accuracy, lr=accuracy) | {"finished": finished}
        results["cells"] = [cell_of(results, "cifar10-0.1/local")]
        results["cells"][0]["pinned"]["rows"] = [row]
        enter(results, root)
    assert parent_of(root).data.metrics["accuracy"] == 60.0


def test_plain_mlflow_in_the_root_shows_the_runs(root, monkeypatch):
    enter(fake_results(methods=2, settings=1, seeds=1), root)
    monkeypatch.chdir(root)
    assert "fake" in [experiment.name for experiment in MlflowClient().search_experiments()]


# ---- once, whatever is run again -----------------------------------------------------------------------


def test_entering_everything_again_adds_nothing(root):
    results = fake_results(methods=2, settings=1, seeds=2)
    enter(results, root)
    before = {run.info.run_id for run in runs_of(root)}
    ids = enter(results, root).run_ids()
    assert {run.info.run_id for run in runs_of(root)} == before
    trials = [run for cell in ids["cells"].values() for run in cell["trials"].values()]
    assert {*trials, *(cell["run"] for cell in ids["cells"].values())} == before


def test_a_run_that_a_kill_left_behind_is_entered_anew(root, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "set_terminated", lambda *_: None)
        patch.setattr(MlflowClient, "log_text", no_space_left)
        Tracker(root, "fake").trial(CELL, ledger_row(CELL))
    assert [run.info.status for run in trials_of(root)] == ["RUNNING"]
    Tracker(root, "fake").trial(CELL, ledger_row(CELL))
    assert [run.info.status for run in trials_of(root)] == ["FINISHED"]


def test_a_killed_sweep_leaves_no_cell_running(root):
    Tracker(root, "fake").trial(CELL, ledger_row(CELL))
    assert parent_of(root).info.status == "SCHEDULED"


def test_a_failed_trial_keeps_its_cause_until_it_succeeds(root):
    row = ledger_row(CELL)
    tracker = Tracker(root, "fake")
    tracker.trial(CELL, failed_row(row, "out of memory"))
    (trial,) = trials_of(root)
    assert (trial.info.status, trial.data.tags["error"]) == ("FAILED", "out of memory")
    tracker.trial(CELL, row)
    (trial,) = trials_of(root)
    assert trial.info.status == "FINISHED"


def test_a_diverged_trial_is_a_failure_that_is_entered_once(root):
    row = ledger_row(CELL)
    row["metrics"]["diverged_at"] = 3
    Tracker(root, "fake").trial(CELL, row)
    (first,) = trials_of(root)
    Tracker(root, "fake").trial(CELL, row)
    assert first.info.status == "FAILED"
    assert [run.info.run_id for run in trials_of(root)] == [first.info.run_id]


def test_a_failed_cell_is_a_failed_run(root):
    results = fake_results(methods=2, settings=1, seeds=1)
    entry = cell_of(results, "cifar10-0.1/local")
    tracker = Tracker(root, "fake")
    tracker.trial(entry["cell"], failed_row(entry["pinned"]["rows"][0], "out of memory"))
    entry["pinned"]["rows"], entry["status"] = [], "failed"
    tracker.cell(entry, Evaluation())
    assert parent_of(root).info.status == "FAILED"


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


# ---- a store that fails --------------------------------------------------------------------------------


def no_space_left(*_: object) -> None:
    raise OSError("no space left on device\nsecond line")


def test_a_store_that_fails_costs_two_lines_and_no_result(root, monkeypatch, caplog):
    monkeypatch.setattr(MlflowClient, "log_text", no_space_left)
    with caplog.at_level(logging.WARNING, "pipeline.tracking"):
        tracker = enter(fake_results(methods=2, settings=1, seeds=2), root)
    first, last = (record.getMessage() for record in caplog.records)
    expected = "MLflow: no space left on device; results are safe in the ledger; "
    assert first == expected + "they are entered when it answers, or by `pfl track fake`"
    assert last == "MLflow: 6 entries are missing; `pfl track fake` makes them"
    assert tracker.lost == "no space left on device"
    assert [run.info.status for run in trials_of(root)] == ["KILLED"]
    assert json.loads((root / "results/fake/mlflow.json").read_text())["cells"]


def test_a_store_that_answers_again_receives_what_has_waited(root, monkeypatch, caplog):
    results = fake_results(methods=2, settings=1, seeds=2)
    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "log_text", no_space_left)
        patch.setattr(MlflowClient, "set_terminated", no_space_left)
        tracker = Tracker(root, "fake")
        for row in results["cells"][0]["pinned"]["rows"]:
            tracker.trial(results["cells"][0]["cell"], row)
    assert [run.info.status for run in trials_of(root)] == ["RUNNING"]
    tracker.cell(results["cells"][0], Evaluation())
    tracker.save()
    assert [run.info.status for run in trials_of(root)] == ["FINISHED"] * 2
    assert parent_of(root).info.status == "FINISHED"
    assert tracker.lost is None
    assert "the store answers again, and has everything" in caplog.records[-1].getMessage()
    assert json.loads((root / "results/fake/mlflow.json").read_text()) == tracker.run_ids()


def test_a_store_that_fails_is_not_asked_for_every_row(root, monkeypatch):
    asked = []

    def failing(*_: object) -> None:
        asked.append(1)
        no_space_left()

    monkeypatch.setattr(MlflowClient, "log_batch", failing)
    enter(fake_results(methods=2, settings=1, seeds=5), root)
    assert len(asked) == 2  # at the first row, and at the end


def test_a_store_that_cannot_be_opened_costs_two_lines(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nonsense://store")
    enter(fake_results(methods=2, settings=1, seeds=2), tmp_path)
    assert len(caplog.records) == 2
    assert "nonsense" in caplog.text


def test_another_store_is_used_and_its_place_not_written_down(tmp_path, store, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.copy(store, elsewhere)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{elsewhere / 'mlflow.db'}")
    enter(fake_results(methods=2, settings=1, seeds=1), tmp_path / "root")
    assert len(runs_of(elsewhere)) == 4
    assert str(tmp_path) not in (tmp_path / "root/results/fake/mlflow.json").read_text()


def test_a_server_that_is_gone_costs_two_lines_without_its_password(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@127.0.0.1:9")
    tracker = enter(fake_results(methods=2, settings=1, seeds=2), tmp_path)
    assert len(caplog.records) == 2
    assert "127.0.0.1" in caplog.text
    assert "secret" not in caplog.text
    assert tracker.run_ids() == {"experiment": "fake", "store": "127.0.0.1", "cells": {}}


def test_rebuilding_enters_what_the_last_sweep_used(root):
    results = fake_results(methods=2, settings=1, seeds=2, search=2)
    write_results(results, root)
    ledger = {
        row["key"]: row for entry in results["cells"] for row in (ledger_row(entry["cell"], phase="search"),)
    }
    expected = {
        row["key"]
        for entry in results["cells"]
        for configuration in (entry["pinned"], entry["selected"])
        for row in configuration["rows"]
    } | set(ledger)
    rebuild(root, "fake", ledger.get)
    assert {run.data.tags["key"] for run in trials_of(root)} == expected
    assert {run.data.tags["from_ledger"] for run in trials_of(root)} == {"true"}
    assert {run.info.status for run in runs_of(root)} == {"FINISHED"}


def test_rebuilding_enters_failures_with_their_causes(root):
    results = fake_results(methods=2, settings=1, seeds=2)
    results["cells"] = results["cells"][:1]
    pinned = results["cells"][0]["pinned"]
    failed = failed_row(pinned["rows"].pop(), "out of memory")
    pinned["failed"] = [failed["key"]]
    write_results(results, root)
    rebuild(root, "fake", {failed["key"]: failed}.get)
    assert sorted(run.info.status for run in trials_of(root)) == ["FAILED", "FINISHED"]
    assert "out of memory" in [run.data.tags.get("error") for run in trials_of(root)]


def test_rebuilding_a_table_without_results_is_refused(root):
    with pytest.raises(InvalidInput, match="a table with results"):
        rebuild(root, "digits", {}.get)


def test_rebuilding_into_a_store_that_fails_says_why(root, monkeypatch):
    write_results(fake_results(methods=2, settings=1, seeds=1), root)
    monkeypatch.setattr(MlflowClient, "log_text", no_space_left)
    with pytest.raises(InvalidInput, match="no space left on device"):
        rebuild(root, "fake", {}.get)
