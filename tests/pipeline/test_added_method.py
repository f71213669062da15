"""`pfl leaderboard add`: a method in its place on a leaderboard."""

from __future__ import annotations

from pathlib import Path

import pytest

from pfl.run.trials import Trial
from pipeline.added_method import text
from pipeline.report.leaderboard import board
from pipeline.spec.table import load_table
from tests.command import pfl, refused
from tests.pipeline.conftest import fill_ledger
from tests.pipeline.fake_results import fake_results, summary_of

BOARD = """\
extends: small
methods: [local, fedavg, fedprox]
seeds: [0, 1, 2]
search: {budget: 1}
report: leaderboard
"""


@pytest.fixture(autouse=True)
def _board(prepared: Path, ran: list[Trial]) -> None:  # noqa: ARG001 - no trial of these tests trains
    """A leaderboard whose runs are in the ledger."""
    (prepared / "tables/board.yaml").write_text(BOARD)
    fill_ledger("board")


@pytest.mark.slow
def test_only_the_new_method_is_run_with_the_budget_and_the_seeds_of_the_others(ran):
    done = pfl("leaderboard", "add", "fedper", "--table", "board")
    assert done.returncode == 0, done.stderr
    assert {trial.cell for trial in ran} == {"dir/fedper"}
    table = load_table("board-with-fedper")
    assert (table.search.budget, table.seeds) == (1, [0, 1, 2])
    assert "FedPer is ranked " in done.stdout
    assert "→" in done.stdout
    report = Path("results/board-with-fedper/report")
    assert "Minus FedPer" in (report / "README.md").read_text()
    assert (report / "leaderboard.html").is_file()
    assert not Path("reports").exists()
    ran.clear()
    assert pfl("leaderboard", "add", "fedper", "--table", "board").stdout.endswith(done.stdout[-200:])
    assert ran == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fedper", "--table", "small"], "--table: small is not accepted; expected board"),
        (["fedavg", "--table", "board"], "method: fedavg is not accepted; expected a method that is not in"),
        (["fedpper", "--table", "board"], "did you mean 'fedper'"),
        (["fedper"], "--table: leaderboard-digits is not accepted; expected board"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(arguments, said):
    assert said in refused("leaderboard", "add", *arguments)
    assert {path.name for path in Path("tables").iterdir()} == {"small.yaml", "board.yaml"}


def test_a_project_without_a_leaderboard_is_told_how_to_get_one():
    Path("tables/board.yaml").unlink()
    assert "expected a leaderboard, as in a project of `pfl init" in refused("leaderboard", "add", "fedper")


def test_without_a_search_no_method_has_kept_its_pinned_configuration():
    shown = text(board(summary_of(fake_results(4, 3, seeds=3))), "fedavg")
    assert "FedAvg is ranked " in shown
    assert "pinned kept" not in shown


def test_a_leaderboard_without_runs_is_refused_before_any_compute(ran):
    Path(".sweeps/ledger/board.jsonl").unlink()
    done = pfl("leaderboard", "add", "fedper", "--table", "board")
    assert done.returncode == 2
    assert "`pfl init --table board --results` copies them" in done.stderr
    assert ran == []
