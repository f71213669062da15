"""What a sweep leaves in MLflow."""

from __future__ import annotations

import json
import shutil
import statistics
from collections import Counter
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from pipeline.trackers.mlflow import MLflowTracker
from tests.pipeline.fake_results import fake_results, ledger_row, record_of, write_results
from tests.pipeline.trackers.entering import CELL, client_of, enter, entered, one_cell, parent_of, runs_of


def curve(root: Path, run: Run, name: str) -> dict[int, float]:
    return {point.step: point.value for point in client_of(root).get_metric_history(run.info.run_id, name)}


def files(root: Path, run: Run) -> list[str]:
    return [file.path for file in client_of(root).list_artifacts(run.info.run_id)]


def test_a_cell_is_a_parent_run_and_a_record_its_child(root, monkeypatch):
    enter(fake_results(methods=2, settings=1, seeds=2), root)
    parents = {run.info.run_id: run.info.run_name for run in runs_of(root, "cell")}
    children = Counter(parents[run.data.tags["mlflow.parentRunId"]] for run in runs_of(root, "final"))
    assert children == {"cifar10-0.1/local": 2, "cifar10-0.1/pfedsim": 2}
    assert {run.info.status for run in runs_of(root)} == {"FINISHED"}
    monkeypatch.chdir(root)  # where plain `mlflow ui` finds them
    assert "fake" in [experiment.name for experiment in MlflowClient().search_experiments()]


def test_a_record_has_flat_tags_and_all_parameters(root):
    row = ledger_row("cifar10-0.1/pfedsim", seed=1) | {"dirty": True}
    run = entered(root, row, trial=0)
    expected = {
        "table": "fake",
        "setting": "cifar10-0.1",
        "method": "pfedsim",
        "row": "pfedsim",
        "partition": row["partition"],
        "seed": "1",
        "phase": "final",
        "trial": "0",
        "key": row["key"],
        "git_commit": row["commit"] + "-dirty",
        "data_checksum": row["data_checksum"],
        "hardware": "Example CPU @ 2.60GHz, 4, 1, cpu, loop, 1",
    }
    assert expected.items() <= run.data.tags.items()
    assert (run.data.params["pfedsim.rho"], run.data.params["lr"]) == ("0.5", "0.05")


def test_the_accuracies_of_unseen_clients_are_entered(root):
    row = ledger_row(CELL)
    accuracy = {"pooled": 40.0, "client_mean": 40.0, "client_mean_weighted": 40.0, "loss": 1.0}
    names = ("received", "adapted", "scratch")
    row["metrics"]["unseen"] = {
        **{name: {**accuracy, "pooled": 10.0 * place} for place, name in enumerate(names, 1)},
        "per_client": [],
    }
    entered_metrics = entered(root, row).data.metrics
    assert [entered_metrics[f"unseen_{name}"] for name in names] == [10.0, 20.0, 30.0]


def test_accuracy_loss_and_bytes_are_entered_by_round_without_missing_numbers(root):
    row = ledger_row(CELL)
    rounds = row["metrics"]["rounds"]
    rounds[0]["train_loss"] = None
    run = entered(root, row)
    for name, key in (("accuracy", "pooled"), ("loss", "loss")):
        assert curve(root, run, name) == {r["round"]: r["post_aggregation"][key] for r in rounds}
    assert list(curve(root, run, "train_loss")) == [10, 15, 20, 25, 30]
    assert run.data.metrics["bytes_up"] == row["metrics"]["bytes_up"]
    assert run.data.metrics["wall_seconds"] == row["measured"]["wall_seconds"]
    assert len(run.data.metrics) <= 12  # MLflow's pages slow down with every further name


def test_where_the_headline_was_evaluated_in_the_end_only_the_tables_moment_is_entered(root):
    row = ledger_row(CELL)
    rounds = row["metrics"]["rounds"]
    for entry in rounds[:-1]:
        del entry["post_aggregation"]
    assert curve(root, entered(root, row), "accuracy") == {
        r["round"]: r["post_local"]["pooled"] for r in rounds
    }


def test_metrics_are_entered_in_as_few_requests_as_mlflow_takes(root, monkeypatch):
    requests: list[int] = []
    original = MlflowClient.log_batch

    def counted(self, run_id, metrics=(), params=(), tags=()):
        requests.append(len(metrics) + len(params) + len(tags))
        return original(self, run_id, metrics, params, tags)

    monkeypatch.setattr(MlflowClient, "log_batch", counted)
    tracker = MLflowTracker(root, "fake")
    tracker.run(CELL, record_of(ledger_row(CELL, phase="search")), 0)
    assert len(requests) == 1
    run = entered(root, ledger_row(CELL, rounds=1000))
    assert len(curve(root, run, "bytes_down")) == 200
    assert max(requests) <= 1000


def test_only_final_runs_keep_their_clients_accuracies(root):
    run = entered(root, ledger_row(CELL, clients=3))
    assert files(root, entered(root, ledger_row(CELL, phase="search"), 0)) == []
    path = Path(client_of(root).download_artifacts(run.info.run_id, "per_client.csv"))
    assert path.read_text().splitlines()[0] == "client,train,test,accuracy"
    assert len(path.read_text().splitlines()) == 4


@pytest.mark.parametrize("plot", ["cifar10-0.1.svg", "cifar10-0.1.local.svg"])
def test_the_partition_plot_of_the_column_or_the_row_is_with_the_cell(root, plot, monkeypatch):
    monkeypatch.chdir(root)
    results = one_cell(seeds=1)
    write_results(results)
    (root / "data/partitions/fake" / plot).write_text("<svg/>")
    enter(results, root)
    assert files(root, parent_of(root)) == [plot]


def test_a_cell_has_the_table_s_scores_with_the_mean_curve_and_its_deviation(root):
    results = one_cell(seeds=2, search=2)
    enter(results, root)
    parent = parent_of(root)
    rows = results["cells"][0]["pinned"]["records"]
    last = [row["metrics"]["rounds"][-1]["post_aggregation"]["pooled"] for row in rows]
    assert parent.data.metrics["final_accuracy"] == pytest.approx(statistics.mean(last), abs=1e-4)
    assert "selected_final_accuracy" in parent.data.metrics
    assert (parent.data.tags["seeds"], parent.data.tags["status"]) == ("0,1", "done")
    means, deviations = curve(root, parent, "accuracy"), curve(root, parent, "accuracy_std")
    assert list(means) == [entry["round"] for entry in rows[0]["metrics"]["rounds"]]
    assert means[30] == pytest.approx(statistics.mean(last))
    assert deviations[30] == pytest.approx(statistics.stdev(last))


def test_a_cell_has_the_parameters_of_its_configurations_and_the_data_set(root):
    results = one_cell("cifar10-0.1/pfedsim", seeds=2, search=2)
    enter(results, root)
    parent = parent_of(root)
    selected = results["cells"][0]["selected"]["records"][0]["config"]
    assert parent.data.params["pfedsim.rho"] == "0.5"
    assert parent.data.params["selected.lr"] == str(selected["lr"])
    inputs = [
        [(i.dataset.name, i.dataset.digest) for i in run.inputs.dataset_inputs] for run in runs_of(root)
    ]
    assert inputs == [[("digits", "5f70bf18")]] * len(inputs)


def test_the_report_is_an_artifact_beside_the_cells(root):
    folder = root / "report"
    folder.mkdir()
    for text in ("first", "second"):
        (folder / "index.html").write_text(text)
        line = MLflowTracker(root, "fake").report(folder)
    assert line.startswith("runs: mlflow ui, then http://127.0.0.1:5000/#/experiments/1/runs?")
    (run,) = runs_of(root)
    path = client_of(root).download_artifacts(run.info.run_id, "index.html")
    assert Path(path).read_text() == "second"


def test_artifacts_of_a_project_that_was_moved_are_found_and_written_there(root):
    before, moved = root / "before 1", root / "moved"
    before.mkdir()
    shutil.copy(root / "mlflow.db", before)
    run = entered(before, ledger_row(CELL, clients=3))
    before.rename(moved)
    (moved / "report").mkdir()
    (moved / "report/index.html").touch()
    MLflowTracker(moved, "fake").report(moved / "report")
    assert files(moved, run) == ["per_client.csv"]
    (report,) = runs_of(moved, "report")
    assert report.info.artifact_uri.startswith((moved / "mlruns/fake").as_uri())
    assert not before.exists()


def test_the_page_that_is_printed_shows_all_cells_in_colours_that_differ(root):
    enter(fake_results(methods=6, settings=2, seeds=1), root)
    colours = [run.data.tags["mlflow.runColor"] for run in runs_of(root, "cell")]
    assert len(set(colours)) == 12
    (root / "report").mkdir()
    line = MLflowTracker(root, "fake").report(root / "report")
    assert line.splitlines()[0].endswith("compareRunsMode=CHART&viewStateShareKey=cell")
    assert view_of(root, "cell") == {"searchFilter": "tags.phase = 'cell'", "runsHiddenMode": "SHOW_ALL"}


def test_a_page_shows_one_setting_alone(root):
    enter(fake_results(methods=2, settings=2, seeds=1), root)
    (root / "report").mkdir()
    line = MLflowTracker(root, "fake").report(root / "report")
    first, second = sorted({run.data.tags["setting"] for run in runs_of(root, "cell")})
    assert line.splitlines()[1].strip() == (
        f"for one column, replace viewStateShareKey=cell in the URL, as in viewStateShareKey=column.{first}"
    )
    shown = client_of(root).search_runs(["1"], view_of(root, f"column.{second}")["searchFilter"])
    assert {run.data.tags["setting"] for run in shown} == {second}
    assert len(shown) == 2


def view_of(root: Path, name: str) -> dict:
    tags = client_of(root).get_experiment_by_name("fake").tags
    return json.loads(tags[f"mlflow.sharedViewState.{name}"])


def test_another_store_is_used(tmp_path, store, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.copy(store, elsewhere)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{elsewhere / 'mlflow.db'}")
    enter(fake_results(methods=2, settings=1, seeds=1), tmp_path)
    assert len(runs_of(elsewhere)) == 4
    assert not (tmp_path / "mlflow.db").exists()


@pytest.mark.parametrize("address", ["http://me:secret@127.0.0.1:9", "nonsense://me:secret@store"])
def test_a_store_that_cannot_be_opened_costs_two_lines_without_its_password(
    address, tmp_path, monkeypatch, caplog
):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    enter(fake_results(methods=2, settings=1, seeds=2), tmp_path)
    assert len(caplog.records) == 2
    assert address.rpartition("@")[2] in caplog.text
    assert "secret" not in caplog.text
