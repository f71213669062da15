"""`pfl init`: project scaffolding."""

from __future__ import annotations

import subprocess
from contextlib import chdir
from pathlib import Path

import pytest

from pipeline.init import init
from pipeline.report.overview import write_overview
from pipeline.spec.imported_trials import prior_file
from pipeline.spec.params import load_part, selected_tables
from pipeline.spec.paths import table_names
from pipeline.spec.published import published_cells
from pipeline.spec.table import load_table
from tests.command import pfl, refused
from tests.repository import ROOT


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_project_has_a_table_that_can_be_checked_and_everything_is_known_to_git(monkeypatch):
    assert pfl("init", "study").returncode == 0
    monkeypatch.chdir("study")
    assert selected_tables() == ["digits"]
    assert load_part("digits").seeds == [0, 1, 2]
    said = subprocess.run(["git", "status", "--porcelain"], capture_output=True, text=True, check=True).stdout
    state, files = zip(*map(str.split, said.splitlines()), strict=True)
    assert set(state) == {"A"}
    assert {"dvc.yaml", "params.yaml", "README.md", ".gitignore", ".dvc/config"} <= set(files)


def test_a_paper_s_table_comes_with_its_published_numbers(monkeypatch):
    assert pfl("init", "--table", "pfedsim-table3", "study").returncode == 0
    monkeypatch.chdir("study")
    assert table_names() == ["pfedsim-table3"]
    assert published_cells(load_part("pfedsim-table3").published.paper)
    assert "## pFedSim" in write_overview().read_text()


@pytest.mark.parametrize(
    ("table", "base", "line"),
    [
        ("digits-search", "digits", "digits-search: 35 cells, "),
        ("pfedsim-table3-choices", "pfedsim-table3", "pfedsim-table3-choices: 20 cells, "),
        ("cifar10-short", "pfedsim-table3", "cifar10-short: 7 cells, 7 runs"),
    ],
)
def test_a_table_comes_with_the_one_that_it_extends_and_can_be_checked(monkeypatch, table, base, line):
    with chdir(ROOT):
        expected = load_table(table)
    assert pfl("init", "--table", table, "study").returncode == 0
    monkeypatch.chdir("study")
    assert table_names() == sorted([base, table])
    assert load_table(table) == expected
    done = pfl("check")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(line)


def test_imported_trials_of_a_table_and_of_the_one_that_it_extends_come_along(project, monkeypatch):
    (project / "tables/study.yaml").write_text("extends: small\n")
    prior_file("small").write_text("cell,gain,parameters,source\n")
    monkeypatch.setattr("pipeline.init._ours", lambda: project)
    monkeypatch.setattr("pipeline.init.FILES", ())
    init(Path("new"), "study")
    names = sorted(path.name for path in Path("new/tables").iterdir())
    assert names == ["small.prior.csv", "small.yaml", "study.yaml"]


@pytest.fixture
def all_current(monkeypatch):
    """An edit of the simulator makes published records stale."""
    monkeypatch.setattr("pipeline.init.is_current", lambda *_: True)


@pytest.mark.usefixtures("all_current")
@pytest.mark.parametrize("table", ["pfedsim-table2", "pfedsim-table3-fedgen"])
def test_published_records_come_along_if_asked(table):
    assert "records" not in pfl("init", "--table", table, "bare").stdout
    assert not Path("bare/results").exists()
    said = pfl("init", "--table", table, "--results", "study").stdout
    own = (ROOT / f"results/ledger/{table}.jsonl").read_bytes()
    assert Path(f"study/results/ledger/{table}.jsonl").read_bytes() == own
    copied = sum(len(path.read_bytes().splitlines()) for path in Path("study/results/ledger").iterdir())
    assert said.startswith(f"{copied} records of {table} in study/results/ledger/\n")


def test_records_that_today_s_code_would_not_compute_stay_behind(monkeypatch):
    monkeypatch.setattr("pipeline.init.is_current", lambda *_: False)
    line = refused("init", "--table", "pfedsim-table2", "--results", "study")
    assert "--results: pfedsim-table2 is not accepted; expected a table with published records of" in line
    assert not Path("study").exists()


@pytest.mark.usefixtures("all_current")
def test_runs_that_another_table_shares_come_along():
    """Two of this table's cells were run for spfl-table1."""
    pfl("init", "--table", "spfl-table6", "--results", "study")
    study, ours = (
        {path.stem: path.read_bytes().splitlines() for path in (root / "results/ledger").glob("*.jsonl")}
        for root in (Path("study"), ROOT)
    )
    assert study["spfl-table6"] == ours["spfl-table6"]
    assert 0 < len(study["spfl-table1"]) < len(ours["spfl-table1"])
    assert set(study["spfl-table1"]) <= set(ours["spfl-table1"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["used"], "folder: used is not accepted; expected a new or an empty folder"),
        (["used/file"], "folder: used/file is not accepted"),
        (["long" * 70], "(File name too long)"),
        (["caf\udce9"], "folder: 'caf\\udce9' is not accepted; expected a name in UTF-8"),
        (["--table", "pfedsim-table33", "new"], "did you mean 'pfedsim-table3'"),
    ],
)
def test_a_folder_that_is_in_use_or_an_unknown_table_is_one_line_and_nothing_is_written(arguments, said):
    Path("used").mkdir()
    Path("used/file").write_text("kept")
    assert said in refused("init", *arguments)
    assert [str(path) for path in Path().rglob("*")] == ["used", "used/file"]
