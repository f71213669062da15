"""`pfl compare`: cells of tables side by side, and a method in its place among the rows of a table."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import pfl as package
from pfl.core.errors import InvalidInput
from pfl.run.trials import Trial
from pipeline.compare import compare, with_method
from pipeline.report.comparison import compare_tables
from pipeline.report.summary import Summary
from pipeline.spec.table import load_table
from pipeline.sweep import preparation
from tests.command import pfl, refused
from tests.pipeline.conftest import fill_ledger
from tests.pipeline.fake_results import SETTINGS, fake_results, summary_of
from tests.pipeline.running import LOCAL, csv_lines


@pytest.fixture
def tables(prepared: Path, ran: list[Trial]) -> Path:  # noqa: ARG001 - no trial of these tests trains
    """Two tables with records, of which the second has a lower rate in one of its rows."""
    (prepared / "tables/slow.yaml").write_text(
        "extends: small\nmethods: [fedavg, {method: fedprox, schedule: {lr: 0.01}}]\n"
    )
    for table in ("small", "slow"):
        fill_ledger(table)
    return prepared


@pytest.mark.usefixtures("tables")
def test_cells_of_two_tables_are_subtracted_seed_by_seed():
    frame = compare("small", "slow").set_index(["row", "table"])
    slow = frame.loc["FedProx", "slow"]
    gap = frame.loc["FedProx", "slow"]["mean"] - frame.loc["FedProx", "small"]["mean"]
    assert slow["difference"] == pytest.approx(gap)
    assert gap < -5
    assert (slow["minus"], slow["pairs"], slow["over"]) == ("small", 2, "seed")
    assert slow["low"] <= slow["difference"] <= slow["high"]
    assert frame.loc["FedAvg", "slow"]["difference"] == 0


def test_a_comparison_is_printed_and_written_by_the_suffix_of_the_file(tables, ran):
    shown = pfl("compare", "small", "slow", "--out", "both.md").stdout.splitlines()
    assert shown[0] == "dir"
    assert shown[1].split() == ["small", "slow", "slow", "−", "small"]
    assert shown[2].endswith("the same runs")
    assert "| FedAvg | 87.04 ± 0.07 | 87.04 ± 0.07 | the same runs |" in (tables / "both.md").read_text()
    pfl("compare", "small", "slow", "--out", "both.csv")
    rows = csv_lines(tables / "both.csv")
    assert [(row["row"], row["table"]) for row in rows] == [
        *(("FedAvg", "small"), ("FedAvg", "slow")),
        *(("FedProx", "small"), ("FedProx", "slow")),
    ]
    assert "--out: both.pdf is not accepted" in pfl("compare", "small", "slow", "--out", "both.pdf").stderr
    assert ran == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["small"],
            "tables: small is not accepted; expected several different tables, or one and --method",
        ),
        (["small", "slow", "--method", "fedper"], "expected one table, in which the method is run"),
        (["small", "slow", "--settings", "dri"], "did you mean 'dir'"),
        (["small", "slow", "--settings", ""], "settings: '' is not accepted; expected one of dir"),
        (["small", "--method", "fedper", "--settings", ""], "settings: '' is not accepted; expected one of"),
        (["small", "sloww"], "did you mean 'slow'"),
        (
            ["small", "--method", "fedavg"],
            "method: fedavg is not accepted; expected a method that is not in small",
        ),
        (["small", "--method", "fedpper"], "did you mean 'fedper'"),
        (["small", "--method", "fedper", "--out", "params.yaml/x.md"], "--out: "),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_run_or_written(tables, ran, arguments, said):
    before = sorted((tables / "tables").iterdir())
    assert said in refused("compare", *arguments)
    assert ran == []
    assert sorted((tables / "tables").iterdir()) == before


@pytest.mark.parametrize(("names", "settings"), [((["small", "slow"],), ()), (("small", "slow"), "dir")])
def test_names_are_not_lists_and_settings_are(names, settings):
    with pytest.raises(InvalidInput, match=r"^tables and settings: .* expected names, as in compare"):
        compare(*names, settings=settings)


def test_tables_without_a_common_cell_cannot_be_compared(tables):
    (tables / "tables/other.yaml").write_text("extends: small\nmethods: [fedper]\n")
    fill_ledger("other")
    with pytest.raises(InvalidInput, match="a common setting and a common row"):
        compare("small", "other")


def test_columns_in_which_nothing_has_been_tried_are_shown_only_if_they_are_named():
    results = fake_results(2, 2)
    first, second = list(SETTINGS)[:2]
    whole = summary_of(results)
    part = summary_of({**results, "cells": [cell for cell in results["cells"] if cell["setting"] == first]})
    nothing = summary_of({**results, "cells": []})

    def shown(summary: Summary, *settings: str) -> list[str]:
        return [column.cells[0].entry.setting for column in compare_tables([summary, summary], settings)]

    assert shown(part) == [first]
    assert shown(part, second) == [second]
    assert shown(whole) == shown(nothing) == [first, second]


def test_of_a_method_among_the_rows_of_a_table_only_the_method_is_run(tables, ran):
    (tables / "params.yaml").write_text("tables: [slow]\nsubset: {methods: [fedavg], seeds: [1]}\n")
    frame = compare("small", method="fedper").set_index("row")
    assert {trial.cell for trial in ran} == {"dir/fedper"}
    assert set(frame["table"]) == {"small-fedper"}
    assert dict(frame["status"]) == {"FedAvg": "done", "FedProx": "done", "FedPer": "done"}
    assert dict(frame["minus"].fillna("")) == {"FedAvg": "FedPer", "FedProx": "FedPer", "FedPer": ""}
    assert not (tables / "reports").exists()
    assert (tables / "params.yaml").read_text().startswith("tables: [slow]")
    ran.clear()
    again = compare("small", method="fedper").set_index("row")
    assert (ran, again.equals(frame)) == ([], True)


def test_rows_that_the_ledger_lacks_are_not_run_beside_a_method(tables, caplog):
    (tables / LOCAL).unlink()
    frame = compare("small", method="fedper").set_index("row")
    assert frame["status"]["FedProx"] == "not run"
    assert (
        "small-fedper: the ledger lacks 2 of 3 cells; `pfl ledger why small-fedper` lists them" in caplog.text
    )


@pytest.mark.usefixtures("tables")
def test_the_table_of_a_method_pins_the_rows_of_its_base_without_searches_and_claims(edit):
    edit("evaluation: {every: 1}\n", "evaluation: {every: 1}\nsearch: {trials: 4}\n")
    edit(
        "- fedavg\n",
        "- {method: fedavg, search: {trials: 5}}\n- {method: fedavg, as: own, search: {trials: 6}}\n",
    )
    base, table = load_table("small"), load_table(with_method("small", "fedper"))
    assert not table.searches
    assert [row.id for row in table.methods] == [*base.row_labels, "fedper"]
    assert [row.model_copy(update={"search": None}) for row in base.methods] == table.methods[:-1]
    assert table.settings == base.settings


def test_an_unknown_tracker_is_one_line_before_any_compute(tables, ran, monkeypatch):
    monkeypatch.setenv("PFL_TRACKER", "mlfow")
    assert "tracker: mlfow is not accepted" in pfl("compare", "small", "--method", "fedper").stderr
    assert not (tables / "data/partitions/small-fedper").exists()
    assert ran == []


def test_the_file_of_a_method_s_table_is_not_written_again(tables):
    file = tables / "tables/small-fedper.yaml"
    with_method("small", "fedper")
    edited = file.read_text() + "seeds: [0]\n"
    file.write_text(edited)
    assert with_method("small", "fedper") == "small-fedper"
    assert file.read_text() == edited


@pytest.mark.usefixtures("tables")
def test_rows_that_the_base_has_got_since_are_named(edit, caplog):
    with_method("small", "fedper")
    edit("- fedavg\n", "- fedavg\n- local\n")
    with_method("small", "fedper")
    assert caplog.messages == ["tables/small-fedper.yaml lacks rows that small has: local"]


@pytest.mark.parametrize("module", ["pipeline.compare", "pipeline.sweep.collection"])
def test_the_examples_of_results_and_comparisons_give_what_they_say(module, tables):
    small = tables / "tables/small.yaml"
    small.rename(tables / "tables/digits.yaml")
    (tables / "tables/slow.yaml").unlink()
    (tables / "tables/digits-tuned.yaml").write_text(
        "extends: digits\nmethods: [fedavg, {method: fedprox, schedule: {lr: 0.1}}]\n"
    )
    for name in ("digits", "digits-tuned"):
        for stage in (preparation.download, preparation.partition, fill_ledger):
            stage(name)
    outcome = doctest.testmod(importlib.import_module(module), extraglobs={"pfl": package})
    assert (outcome.failed, outcome.attempted) == (0, 2)
