"""All methods at one moment of the last evaluation."""

from __future__ import annotations

import pytest

from pipeline.report.moments import blocks
from tests.pipeline.fake_results import results_by_row, summary_of
from tests.pipeline.report.conftest import line_of, readme_of, report_of
from tests.pipeline.running import csv_lines

SETTING = "cifar10-0.1"


def test_each_moment_has_its_own_accuracies_whatever_a_method_reports():
    results = results_by_row(local=(50.0, 52.0), fedavg=(60.0, 62.0), pfedsim=(70.0, 72.0))
    results["config"]["methods"][1]["evaluation"] = {"moment": "post_local", "which": "best"}
    trained, received = blocks(summary_of(results))
    means = {
        block.moment: [entries[SETTING].entry.score.mean for _, entries in block.lines]
        for block in (trained, received)
    }
    # In made-up rows, a model is 5 points better after local training.
    assert means["post_local"] == pytest.approx([56.0, 66.0, 76.0])
    assert means["post_aggregation"] == pytest.approx([51.0, 61.0, 71.0])


def test_the_others_are_compared_with_the_reference_or_else_with_the_best():
    results = results_by_row(local=(50.0, 52.0), fedavg=(70.0, 72.5), pfedsim=(68.0, 70.0))
    for reference, against in ((None, "fedavg"), ("pfedsim", "pfedsim")):
        results["config"]["reference"] = reference
        trained, _ = blocks(summary_of(results))
        entries = [entries[SETTING] for _, entries in trained.lines]
        assert {entry.against for entry in entries} == {against}
        assert [entry.entry.row for entry in entries if entry.gap is None] == [against]
    gap = next(entry.gap for entry in entries if entry.entry.row == "fedavg")
    assert gap.mean == pytest.approx(2.25)
    assert gap.high == pytest.approx(2.25 + 12.706204736174707 * 0.25)


def test_the_tables_of_the_readme_have_line_breaks_and_no_escaped_tags():
    results = results_by_row(local=(50.0, 52.0), fedavg=(60.0, 62.5), pfedsim=(70.0, 72.0))
    readme = readme_of(results)
    trained = readme.partition("After local training on the client's own data")[2]
    assert "| FedAvg | 66.25 ± 1.77<br><sub>−9.75 (" in trained
    assert "&lt;" not in readme


def test_a_moment_that_a_row_does_not_have_is_said_to_be_missing():
    results = results_by_row(local=(50.0,), fedavg=(60.0,), pfedsim=(70.0,))
    for evaluation in results["cells"][1]["pinned"]["records"][0]["metrics"]["rounds"]:
        del evaluation["post_local"]
    folder = report_of(results)
    block = (folder / "README.md").read_text().partition("### After local training")[2].partition("###")[0]
    assert "| FedAvg | *not recorded* |" in block
    assert "<em>not recorded</em>" in (folder / "index.html").read_text()
    rows = [(row["row"], row["moment"]) for row in csv_lines(folder / "moments.csv")]
    assert ("fedavg", "post_aggregation") in rows
    assert ("fedavg", "post_local") not in rows
    moments = {row["row"]: row["post_local"] for row in csv_lines(folder / "table.csv")}
    assert moments == {"local": "55.0000", "fedavg": "", "pfedsim": "75.0000"}


def test_rows_of_one_simulation_are_shown_once():
    results = results_by_row(local=(50.0,), fedavg=(60.0,), pfedsim=(70.0,))
    results["cells"][1]["pinned"]["records"] = results["cells"][2]["pinned"]["records"]
    trained, _ = blocks(summary_of(results))
    assert [label for label, _ in trained.lines] == ["Local", "FedAvg"]


@pytest.mark.parametrize(
    ("changed", "labels"),
    [
        ({"hyperparameters": {"finetune_epochs": 9}}, ["Local", "FedAvg"]),
        ({"hyperparameters": {"removed": "its default"}}, ["Local", "FedAvg"]),
        ({"lr": 0.5}, ["Local", "FedAvg", "pFedSim"]),
    ],
)
def test_rows_that_one_training_serves_are_shown_once(changed, labels):
    results = results_by_row(local=(50.0, 51.0), fedavg=(60.0, 61.0), pfedsim=(60.0, 61.0))
    for cell, values in zip(results["cells"][1:], ({}, changed), strict=True):
        for record in cell["pinned"]["records"]:
            record["config"].update({"method": "fedbabu", "hyperparameters": {}, **values})
    for block in blocks(summary_of(results)):
        assert [label for label, _ in block.lines] == labels
    results["config"]["reference"] = "pfedsim"  # with which the others are compared
    for block in blocks(summary_of(results)):
        assert [label for label, _ in block.lines] == ["Local", "FedAvg", "pFedSim"]


def test_a_column_in_which_some_rows_report_no_accuracy_has_the_others():
    results = results_by_row(settings=2, local=(50.0,), fedavg=(60.0,), pfedsim=(70.0,))
    results["config"]["settings"]["cifar10-0.5"]["evaluation"] = {"metric": "seconds_per_sample"}
    results["config"]["methods"][1]["evaluation"] = {"metric": "pooled"}
    block = readme_of(results).partition("### After local training")[2].partition("###")[0]
    assert [text.partition("<")[0] for text in line_of(block, "Local")] == ["55.00", ""]
    assert line_of(block, "FedAvg")[1] == "**65.00**"


def test_a_table_without_accuracies_has_no_moments():
    results = results_by_row(local=(50.0,), pfedsim=(70.0,))
    results["config"]["evaluation"]["metric"] = "seconds_per_sample"
    assert blocks(summary_of(results)) == []
