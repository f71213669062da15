"""What a sweep leaves in MLflow."""

from __future__ import annotations

import statistics
from collections import Counter
from pathlib import Path

import pytest
from mlflow import MlflowClient

from pipeline.store.mlflow_store import MLflowStore
from pipeline.store.tracking import attach_report
from tests.pipeline.fake_results import cell_of, fake_results, ledger_row, record_of, write_results
from tests.pipeline.store.tracking.entering import CELL, client_of, enter, parent_of, runs_of, trials_of


def test_a_cell_is_a_parent_run_and_a_trial_its_child(root):
    enter(fake_results(methods=2, settings=1, seeds=2), root)
    parents = {run.info.run_id: run.info.run_name for run in runs_of(root) if "key" not in run.data.tags}
    assert sorted(parents.values()) == ["cifar10-0.1/local", "cifar10-0.1/pfedsim"]
    children = Counter(parents[run.data.tags["mlflow.parentRunId"]] for run in trials_of(root))
    assert children == {"cifar10-0.1/local": 2, "cifar10-0.1/pfedsim": 2}


def test_a_trial_has_flat_tags(root):
    row = ledger_row(CELL, seed=1)
    MLflowStore(root, "fake").trial(CELL, record_of(row), trial_number=0, from_ledger=True)
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
        "hardware": "Example CPU @ 2.60GHz, 4, 1, cpu, loop, 1",
        "from_ledger": "true",
    }
    assert expected.items() <= trial.data.tags.items()


def test_a_row_of_an_edited_tree_is_tagged(root):
    row = ledger_row(CELL) | {"dirty": True}
    MLflowStore(root, "fake").trial(CELL, record_of(row))
    assert trials_of(root)[0].data.tags["git_commit"] == row["commit"] + "-dirty"


def test_accuracy_loss_and_bytes_are_entered_by_round(root):
    row = ledger_row(CELL)
    MLflowStore(root, "fake").trial(CELL, record_of(row))
    (trial,) = trials_of(root)
    for name, key in (("accuracy", "pooled"), ("loss", "loss")):
        history = client_of(root).get_metric_history(trial.info.run_id, name)
        rounds = row["metrics"]["rounds"]
        assert [(m.step, m.value) for m in history] == [
            (r["round"], r["post_aggregation"][key]) for r in rounds
        ]
    assert trial.data.metrics["bytes_up"] == row["metrics"]["bytes_up"]
    assert trial.data.metrics["wall_seconds"] == row["measured"]["wall_seconds"]


def test_where_the_headline_was_evaluated_in_the_end_only_the_tables_moment_is_entered(root):
    row = ledger_row(CELL)
    rounds = row["metrics"]["rounds"]
    for entry in rounds[:-1]:
        del entry["post_aggregation"]
    MLflowStore(root, "fake").trial(CELL, record_of(row))
    (trial,) = trials_of(root)
    history = client_of(root).get_metric_history(trial.info.run_id, "accuracy")
    assert [(m.step, m.value) for m in history] == [(r["round"], r["post_local"]["pooled"]) for r in rounds]


def test_a_run_has_few_metrics_and_all_parameters(root):
    row = ledger_row("cifar10-0.1/pfedsim")
    MLflowStore(root, "fake").trial(row["cell"], record_of(row))
    (trial,) = trials_of(root)
    assert len(trial.data.metrics) <= 12
    assert trial.data.params["pfedsim.rho"] == "0.5"
    assert trial.data.params["lr"] == "0.05"


def test_a_number_that_is_missing_is_left_out(root):
    row = ledger_row(CELL)
    row["metrics"]["rounds"][0]["train_loss"] = None
    MLflowStore(root, "fake").trial(CELL, record_of(row))
    history = client_of(root).get_metric_history(trials_of(root)[0].info.run_id, "train_loss")
    assert [metric.step for metric in history] == [10, 15, 20, 25, 30]


def test_a_trial_is_entered_in_one_request(root, monkeypatch):
    requests = count_requests(monkeypatch)
    MLflowStore(root, "fake").trial(CELL, record_of(ledger_row(CELL)))
    assert len(requests) == 1


def test_more_metrics_than_a_request_takes_are_all_entered(root, monkeypatch):
    requests = count_requests(monkeypatch)
    MLflowStore(root, "fake").trial(CELL, record_of(ledger_row(CELL, rounds=1000)))
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
    store = MLflowStore(root, "fake")
    store.trial(CELL, record_of(ledger_row(CELL, clients=3)))
    store.trial(CELL, record_of(ledger_row(CELL, phase="search")), trial_number=0)
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


def test_a_row_that_divides_the_data_in_its_own_way_has_its_own_plot(root):
    results = fake_results(methods=2, settings=1, seeds=1)
    results["cells"] = results["cells"][:1]
    write_results(results, root)
    own = root / "data/partitions/fake/cifar10-0.1.local.svg"
    own.write_text("<svg/>")
    enter(results, root)
    files = client_of(root).list_artifacts(parent_of(root).info.run_id)
    assert [file.path for file in files] == [own.name]


def test_a_concluded_cell_has_the_table_s_scores(root):
    results = fake_results(methods=2, settings=1, seeds=2, search=2)
    results["cells"] = [cell_of(results, "cifar10-0.1/local")]
    enter(results, root)
    parent = parent_of(root)
    rows = results["cells"][0]["pinned"]["records"]
    mean = sum(row["metrics"]["accuracy"]["pooled"]["last"] for row in rows) / 2
    assert parent.data.metrics["final_accuracy"] == pytest.approx(mean)
    assert "selected_final_accuracy" in parent.data.metrics
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
        results["cells"][0]["pinned"]["records"] = [row]
        enter(results, root)
    assert parent_of(root).data.metrics["final_accuracy"] == 60.0


def test_plain_mlflow_in_the_root_shows_the_runs(root, monkeypatch):
    enter(fake_results(methods=2, settings=1, seeds=1), root)
    monkeypatch.chdir(root)
    assert "fake" in [experiment.name for experiment in MlflowClient().search_experiments()]


def test_a_cell_has_the_mean_curve_and_its_deviation(root):
    results = fake_results(methods=2, settings=1, seeds=2)
    results["cells"] = results["cells"][:1]
    enter(results, root)
    rounds = [row["metrics"]["rounds"] for row in results["cells"][0]["pinned"]["records"]]
    last = [curve[-1]["post_aggregation"]["pooled"] for curve in rounds]
    client, run = client_of(root), parent_of(root).info.run_id
    curve = client.get_metric_history(run, "accuracy")
    assert [point.step for point in curve] == [entry["round"] for entry in rounds[0]]
    assert curve[-1].value == pytest.approx(statistics.mean(last))
    deviations = client.get_metric_history(run, "accuracy_std")
    assert deviations[-1].value == pytest.approx(statistics.stdev(last))


def test_a_cell_has_the_parameters_of_its_configurations(root):
    results = fake_results(methods=2, settings=1, seeds=2, search=2)
    results["cells"] = [cell_of(results, "cifar10-0.1/pfedsim")]
    enter(results, root)
    parent = parent_of(root)
    selected = results["cells"][0]["selected"]["records"][0]["config"]
    assert parent.data.params["pfedsim.rho"] == "0.5"
    assert parent.data.params["selected.lr"] == str(selected["lr"])


def test_the_data_set_is_an_input_with_its_digest(root):
    enter(fake_results(methods=2, settings=1, seeds=1), root)
    inputs = {(i.dataset.name, i.dataset.digest) for run in runs_of(root) for i in run.inputs.dataset_inputs}
    assert inputs == {("digits", "5f70bf18")}
    assert all(len(run.inputs.dataset_inputs) == 1 for run in runs_of(root))


def test_a_cell_whose_rows_changed_has_their_parameters_and_all_trials(root):
    for lr in (0.1, 0.2):
        results = fake_results(methods=2, settings=1, seeds=1)
        results["cells"] = [cell_of(results, "cifar10-0.1/local")]
        results["cells"][0]["pinned"]["records"] = [ledger_row("cifar10-0.1/local", lr=lr)]
        enter(results, root)
    parent = parent_of(root)
    assert parent.data.params["lr"] == "0.2"
    assert {run.data.tags["mlflow.parentRunId"] for run in trials_of(root)} == {parent.info.run_id}
    assert len(trials_of(root)) == 2


def test_the_report_is_an_artifact_beside_the_cells(root, tmp_path):
    folder = tmp_path / "reports"
    folder.mkdir()
    for text in ("first", "second"):
        (folder / "index.html").write_text(text)
        line = attach_report(root, "fake", folder)
    assert "#/experiments/1/runs?" in line
    (run,) = runs_of(root)
    path = client_of(root).download_artifacts(run.info.run_id, "index.html")
    assert Path(path).read_text() == "second"


def test_a_report_that_cannot_be_attached_costs_a_line_without_the_password(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@127.0.0.1:9")
    line = attach_report(tmp_path, "fake", tmp_path)
    assert line.endswith("`pfl track fake` attaches the report later")
    assert "secret" not in line
