"""`pfl compare`: cells of tables side by side, and a method in its place among the rows of a table."""

from __future__ import annotations

import csv
import doctest
import importlib
from pathlib import Path

import pytest

import pfl as package
from pfl.core.errors import InvalidInput
from pipeline.compare import compare, with_method
from pipeline.spec.table import load_table
from pipeline.store.ledger import Ledger
from pipeline.sweep import preparation
from pipeline.sweep.collection import in_memory
from tests.command import pfl
from tests.pipeline.conftest import SOURCES, fake_run, finish


def simulate(table: str) -> None:
    """Fill the ledger with made-up records of a table."""
    finish(in_memory(table, load_table(table), Ledger(SOURCES)))


@pytest.fixture
def tables(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two tables with records, of which the second has a lower rate in one of its rows."""
    for module in ("collection", "train_sweep"):
        monkeypatch.setattr(f"pipeline.sweep.{module}.current_sources", lambda _: SOURCES)
    monkeypatch.setenv("PFL_TRACKER", "none")
    monkeypatch.setattr("pipeline.sweep.cluster.run", lambda *_: pytest.fail("a trial has run"))
    (prepared / "tables/slow.yaml").write_text(
        "extends: small\nmethods: [fedavg, {method: fedprox, schedule: {lr: 0.01}}]\n"
    )
    for table in ("small", "slow"):
        simulate(table)
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


def test_a_comparison_is_printed_and_written_by_the_suffix_of_the_file(tables):
    shown = pfl("compare", "small", "slow", "--out", "both.md").stdout.splitlines()
    assert shown[0] == "dir"
    assert shown[1].split() == ["small", "slow", "slow", "−", "small"]
    assert shown[2].endswith("the same runs")
    assert "| FedAvg | 87.04 ± 0.07 | 87.04 ± 0.07 | the same runs |" in (tables / "both.md").read_text()
    pfl("compare", "small", "slow", "--out", "both.csv")
    rows = list(csv.DictReader((tables / "both.csv").read_text().splitlines()))
    assert [(row["row"], row["table"]) for row in rows] == [
        *(("FedAvg", "small"), ("FedAvg", "slow")),
        *(("FedProx", "small"), ("FedProx", "slow")),
    ]
    assert "--out: both.pdf is not accepted" in pfl("compare", "small", "slow", "--out", "both.pdf").stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["small"],
            "tables: small is not accepted; expected two or more different ones, or one and a method",
        ),
        (["small", "slow", "--method", "fedper"], "expected one table, in which the method is run"),
        (["small", "slow", "--settings", "dri"], "did you mean 'dir'"),
        (["small", "sloww"], "did you mean 'slow'"),
        (
            ["small", "--method", "fedavg"],
            "method: fedavg is not accepted; expected one that is no row of small",
        ),
        (["small", "--method", "fedpper"], "did you mean 'fedper'"),
        (["small", "--method", "fedper", "--out", "params.yaml/x.md"], "--out: "),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(tables, arguments, said):
    before = sorted((tables / "tables").iterdir())
    done = pfl("compare", *arguments)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert said in done.stderr
    assert sorted((tables / "tables").iterdir()) == before


def test_tables_without_a_common_cell_cannot_be_compared(tables):
    (tables / "tables/other.yaml").write_text("extends: small\nmethods: [fedper]\n")
    simulate("other")
    with pytest.raises(InvalidInput, match="share a setting and the printed name of a row"):
        compare("small", "other")


def test_of_a_method_among_the_rows_of_a_table_only_the_method_is_run(tables, monkeypatch):
    (tables / "params.yaml").write_text("tables: [slow]\nsubset: {methods: [fedavg], seeds: [1]}\n")
    ran: list[str] = []

    def run(scheduler, *_):
        ran.extend(trial.cell for trial in finish(scheduler, fake_run))

    monkeypatch.setattr("pipeline.sweep.cluster.run", run)
    frame = compare("small", method="fedper").set_index("row")
    assert set(ran) == {"dir/fedper"}
    assert set(frame["table"]) == {"small-fedper"}
    assert dict(frame["status"]) == {"FedAvg": "done", "FedProx": "done", "FedPer": "done"}
    assert dict(frame["minus"].fillna("")) == {"FedAvg": "FedPer", "FedProx": "FedPer", "FedPer": ""}
    assert not (tables / "reports").exists()
    assert (tables / "params.yaml").read_text().startswith("tables: [slow]")
    ran.clear()
    again = compare("small", method="fedper").set_index("row")
    assert (ran, again.equals(frame)) == ([], True)


def test_rows_that_the_ledger_lacks_are_not_run_beside_a_method(tables, monkeypatch, caplog):
    (tables / ".sweeps/ledger/small.jsonl").unlink()
    monkeypatch.setattr("pipeline.sweep.cluster.run", lambda scheduler, *_: finish(scheduler))
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
    assert not table.searched_rows
    assert [row.id for row in table.methods] == [*base.row_labels, "fedper"]
    assert [row.model_copy(update={"search": None}) for row in base.methods] == table.methods[:-1]
    assert table.settings == base.settings


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
        for stage in (preparation.download, preparation.partition, simulate):
            stage(name)
    outcome = doctest.testmod(importlib.import_module(module), extraglobs={"pfl": package})
    assert (outcome.failed, outcome.attempted) == (0, 2)
