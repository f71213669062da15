"""Results out of the ledger alone, whatever `params.yaml` selects and whichever files are gone."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipeline.report.table_report import write_report
from pipeline.spec.table import load_table
from pipeline.store.ledger import Ledger
from pipeline.store.results import load_results
from pipeline.store.workspace import table_lock
from pipeline.sweep.collection import collect, lacking, results, results_of
from pipeline.sweep.scheduler import scheduler_of
from tests.command import pfl
from tests.pipeline import running
from tests.pipeline.conftest import SOURCES, fake_run, fill_ledger, prepare, printed


@pytest.fixture(autouse=True)
def _code_of_the_records(monkeypatch):
    monkeypatch.setattr("pipeline.sweep.collection.current_sources", lambda _: SOURCES)


@pytest.fixture
def half(prepared: Path) -> Path:
    """A project whose ledger holds one of two methods."""
    ledger = Ledger(SOURCES)
    for row in fake_run(scheduler_of("small", load_table("small"), ledger).cells[0].pinned.trial):
        ledger.append(row)
    return prepared


@pytest.mark.usefixtures("project")
def test_each_column_has_the_seeds_that_all_its_methods_have_in_the_ledger(edit, monkeypatch):
    edit("search: {trials: 4}\n", "")
    ledger = Ledger(SOURCES)
    scheduler = scheduler_of("small", load_table("small"), ledger)
    for cell in scheduler.cells:  # one method lacks the second seed in one column
        seeds = (0,) if cell.cell.id == "two/fedprox" else (0, 1)
        for row in fake_run(cell.pinned.trial):
            if row.seed in seeds:
                ledger.append(row)
    monkeypatch.setattr("pipeline.sweep.cluster.run", lambda *_: pytest.fail("a trial has run"))
    assert collect("small") == 4
    content = running.results()
    assert content["subset"]["seeds"] == []
    assert {cell["cell"]: len(cell["pinned"]["records"]) for cell in content["cells"]} == {
        "dir/fedavg": 2,
        "dir/fedprox": 2,
        "two/fedavg": 1,
        "two/fedprox": 1,
    }
    assert (content["trials_run"], content["trials_from_ledger"]) == (0, 6)
    readme = (write_report("small") / "README.md").read_text()
    assert "mean ± standard deviation over 2 seeds (dir) or one seed (two).\n" in readme


@pytest.mark.usefixtures("prepared")
def test_a_seed_that_no_column_has_is_not_part_of_the_results():
    ledger = Ledger(SOURCES)
    for cell in scheduler_of("small", load_table("small"), ledger).cells:
        ledger.append(fake_run(cell.pinned.trial)[0])
    assert collect("small") == 2
    assert running.results()["subset"]["seeds"] == [0]
    assert ", one seed.\n" in (write_report("small") / "README.md").read_text()


@pytest.mark.usefixtures("prepared")
def test_a_ledger_with_an_earlier_search_says_so():
    ledger = Ledger(SOURCES)
    trial = scheduler_of("small", load_table("small"), ledger).cells[0].pinned.trial
    earlier = replace(trial, phase="search", behaviour="fedavg-0")
    for row in fake_run(earlier):
        ledger.append(row)
    assert collect("small") == 0
    assert lacking("small") == (
        "the ledger has only searches that are unfinished or of an earlier version; "
        "`pfl ledger why small` lists the runs"
    )


@pytest.mark.usefixtures("half")
def test_a_column_of_which_the_ledger_holds_one_method_is_collected_with_that():
    assert collect("small") == 1
    # What is missing was not left out.
    assert running.results()["subset"] == {"settings": [], "methods": [], "seeds": []}
    readme = (write_report("small") / "README.md").read_text()
    assert "*not run*" in readme
    assert "dvc exp run -S 'tables=[small]' -S 'subset.methods=[fedavg]'\n" in readme


def test_nothing_is_written_for_a_table_of_which_the_ledger_holds_nothing(prepared):
    assert collect("small") == 0
    assert not (prepared / "results").exists()


@pytest.fixture
def held(half: Path) -> Path:
    """A project whose ledger holds one of two methods, and whose `reports/tables/` has a page."""
    (half / "reports/tables/small").mkdir(parents=True)
    (half / "reports/tables/small/README.md").write_text("As published.\n")
    return half


def test_a_report_changes_nothing_that_git_keeps_unless_it_is_published(held):
    said = pfl("report").stdout
    assert said.endswith("small: results/small/report/README.md, 1 cell\n")
    assert (held / "results/small/report/index.html").is_file()
    assert [path.name for path in (held / "reports/tables/small").iterdir()] == ["README.md"]
    assert (held / "reports/tables/small/README.md").read_text() == "As published.\n"
    assert not (held / "reports/README.md").exists()


def test_a_published_report_is_that_of_the_table_without_its_page_and_latex(held):
    pfl("report", "small")
    (held / "results/small/report/partition-dir.svg").touch()
    assert pfl("report", "--publish").stdout.endswith("small: reports/tables/small/README.md, 1 cell\n")
    source, kept = held / "results/small/report", held / "reports/tables/small"
    assert {path.name for path in source.iterdir()} - {path.name for path in kept.iterdir()} == {
        "index.html",
        "table.tex",
        "clients.svg",
        "communication.svg",
        *(path.name for path in source.glob("partition-*.svg")),
    }
    assert all(path.read_bytes() == (source / path.name).read_bytes() for path in kept.iterdir())
    links = re.findall(r"\]\(([^)#]+)\)", (kept / "README.md").read_text())
    assert {"table.csv", "convergence.svg"} <= set(links)
    assert all((kept / link).is_file() for link in links)


def test_a_table_that_a_sweep_is_using_leaves_all_published_pages(held):
    (held / "tables/used.yaml").write_text("extends: small\n")
    with table_lock("used"):
        done = pfl("report", "small", "used", "--publish")
    assert "used: in use by another command (process" in done.stderr
    assert (held / "reports/tables/small/README.md").read_text() == "As published.\n"


def test_a_part_of_a_table_is_not_published(held):
    (held / "params.yaml").write_text("tables: [small]\nsubset: {methods: [fedavg]}\n")
    done = pfl("report", "small", "--publish")
    assert done.returncode
    assert "subset: methods is not accepted; expected empty lists, because only whole tables" in done.stderr
    assert (held / "reports/tables/small/README.md").read_text() == "As published.\n"


@pytest.fixture
def removed(prepared) -> Path:
    """A project with a finished table, of which DVC has removed all files, and another that is selected."""
    fill_ledger("small")
    shutil.rmtree("data")
    (prepared / "tables/other.yaml").write_text("extends: small\nmethods: [fedavg]\n")
    (prepared / "params.yaml").write_text("tables: [other]\nsubset: {methods: [fedavg], seeds: [1]}\n")
    return prepared


def test_results_that_are_gone_are_read_from_the_ledger_and_nothing_is_written(removed):
    before = sorted(removed.rglob("*"))
    runs = results("small")
    assert {(run.labels["row"], run.labels["seed"]) for run in runs} == {
        (row, seed) for row in ("fedavg", "fedprox") for seed in (0, 1)
    }
    assert sorted(removed.rglob("*")) == before


@pytest.mark.usefixtures("removed")
def test_results_of_the_ledger_are_those_that_a_report_writes():
    assembled = results_of("small")
    collect("small")
    assert load_results("small").cells == assembled.cells


@pytest.mark.usefixtures("removed")
def test_pending_runs_of_a_table_that_is_not_selected_are_those_of_all_of_it():
    assert pfl("ledger", "why", "small").stdout == "4 runs of dir/fedavg, dir/fedprox: in the ledger\n"


@pytest.mark.usefixtures("removed")
def test_pending_runs_of_an_unknown_table_are_refused_with_the_tables_that_there_are():
    assert "table: smal is not accepted; expected one of other, small" in pfl("ledger", "why", "smal").stderr


@pytest.mark.usefixtures("removed")
def test_selections_of_a_search_are_exported_from_the_ledger(edit):
    edit("evaluation: {every: 1}\n", "evaluation: {every: 1}\nsearch: {trials: 4}\n")
    fill_ledger("small")
    exported = pfl("search", "export", "small")
    assert not exported.stderr
    assert "the search of small" in exported.stdout


@pytest.mark.usefixtures("removed")
def test_a_selection_that_the_ledger_cannot_tell_is_one_line(edit, caplog):
    edit("fedprox, params: {mu: 0.1}}", "fedprox, params: {mu: 0.1}, search: {trials: 4}}")
    assert [cell.cell for cell in results_of("small").cells] == ["dir/fedavg"]
    assert caplog.messages == [
        "small: the ledger lacks 1 of 2 cells (1 search without a known selection); "
        "`pfl ledger why small` lists them"
    ]


@pytest.fixture
def own(project: Path, edit) -> Path:
    """The file of a user's own data, whose table has been prepared and whose runs are in the ledger."""
    file = project / "own data.npz"
    _write_data(file, seed=0)
    edit("dataset: digits", "dataset: own data.npz")
    prepare(edit)
    fill_ledger("small")
    return file


def _write_data(file: Path, seed: int) -> None:
    images = np.random.default_rng(seed).integers(0, 255, (200, 8, 8, 1), dtype=np.uint8)
    np.savez(file, images=images, labels=np.arange(200) % 4)


def test_records_of_own_data_that_have_changed_since_are_stale(own):
    assert printed("ledger", "why", "small").endswith(": in the ledger\n")
    _write_data(own, seed=1)
    assert "stale: different images of own data.npz" in printed("ledger", "why", "small")


def test_own_data_that_are_gone_are_one_line_that_says_where_they_were_looked_for(own):
    own.unlink()
    for command in (("ledger", "why", "small"), ("trials", "small", "pending.jsonl")):
        said = pfl(*command).stderr
        expected = f"an existing folder, zip, tar or npz (there is no {own})"
        assert said == f"pfl: error: dataset: own data.npz is not accepted; expected {expected}\n"
    done = pfl("report")
    assert done.returncode == 1
    assert done.stderr == "small: no cell to report: its data are not here: own data.npz\n"


def test_columns_whose_own_data_are_gone_are_left_out(own, edit, caplog):
    edit("  dir:", '  two: {partition: "pathological:2", dataset: digits}\n  dir:')
    own.unlink()
    assert "4 runs of two/fedavg, two/fedprox: never run" in printed("ledger", "why", "small")
    assert "small: left out, as their data are not here: dir" in caplog.text
