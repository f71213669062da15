"""`pfl init`: project scaffolding."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pipeline.report.overview import write_overview
from pipeline.spec.params import load_part, selected_tables
from pipeline.spec.paths import table_names
from pipeline.spec.published import published_cells
from pipeline.spec.table import load_table
from tests.command import pfl

ROOT = Path(__file__).parents[2]


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
    assert "## pFedSim" in write_overview(Path.cwd()).read_text()


@pytest.mark.parametrize(
    ("table", "base", "line"),
    [
        ("digits-search", "digits", "digits-search: 35 cells, "),
        ("pfedsim-table3-choices", "pfedsim-table3", "pfedsim-table3-choices: 20 cells, "),
        ("cifar10-short", "pfedsim-table3", "cifar10-short: 7 cells, at most 7 simulations"),
    ],
)
def test_a_table_comes_with_the_one_that_it_extends_and_can_be_checked(monkeypatch, table, base, line):
    expected = load_table(table, ROOT)
    assert pfl("init", "--table", table, "study").returncode == 0
    monkeypatch.chdir("study")
    assert table_names() == sorted([base, table])
    assert load_table(table) == expected
    done = pfl("check")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(line)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["used"], "folder: used is not accepted; expected a new or an empty folder"),
        (["used/file"], "folder: used/file is not accepted"),
        (["--table", "pfedsim-table33", "new"], "did you mean 'pfedsim-table3'"),
    ],
)
def test_a_folder_that_is_in_use_or_an_unknown_table_is_one_line_and_nothing_is_written(arguments, said):
    Path("used").mkdir()
    Path("used/file").write_text("kept")
    done = pfl("init", *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert [str(path) for path in Path().rglob("*")] == ["used", "used/file"]
