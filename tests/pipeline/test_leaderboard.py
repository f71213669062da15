"""`pfl leaderboard add`: a method in its place on a leaderboard."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.spec.table import load_table
from pipeline.store.ledger import Ledger
from pipeline.sweep.collection import in_memory
from tests.command import pfl
from tests.pipeline.conftest import SOURCES, fake_run, finish

BOARD = """\
extends: small
methods: [local, fedavg, fedprox]
seeds: [0, 1, 2]
search: {budget: 1}
report: leaderboard
"""


@pytest.fixture
def ran(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A leaderboard whose runs are in the ledger; the cells of the trials that run after that."""
    for module in ("collection", "train_sweep"):
        monkeypatch.setattr(f"pipeline.sweep.{module}.current_sources", lambda _: SOURCES)
    monkeypatch.setenv("PFL_TRACKER", "none")
    (prepared / "tables/board.yaml").write_text(BOARD)
    finish(in_memory("board", load_table("board"), Ledger(SOURCES)), fake_run)
    ran: list[str] = []

    def run(scheduler, *_):
        ran.extend(trial.cell for trial in finish(scheduler, fake_run))

    monkeypatch.setattr("pipeline.sweep.cluster.run", run)
    return ran


@pytest.mark.slow
def test_only_the_new_method_is_run_with_the_budget_and_the_seeds_of_the_others(ran):
    done = pfl("leaderboard", "add", "fedper", "--table", "board")
    assert done.returncode == 0, done.stderr
    assert set(ran) == {"dir/fedper"}
    table = load_table("board-with-fedper")
    assert (table.search.budget, table.seeds) == (1, [0, 1, 2])
    assert "FedPer has place " in done.stdout
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
        (
            ["fedper", "--table", "small"],
            "--table: small is not accepted; expected a table with `report: leaderboard`",
        ),
        (
            ["fedavg", "--table", "board"],
            "method: fedavg is not accepted; expected one that is no row of board",
        ),
        (["fedpper", "--table", "board"], "did you mean 'fedper'"),
        (["fedper"], "table: leaderboard-digits"),
    ],
)
@pytest.mark.usefixtures("ran")
def test_a_mistake_is_one_line_and_nothing_is_written(arguments, said):
    done = pfl("leaderboard", "add", *arguments)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert said in done.stderr
    assert {path.name for path in Path("tables").iterdir()} == {"small.yaml", "board.yaml"}


def test_a_leaderboard_without_runs_is_refused_before_any_compute(ran):
    Path(".sweeps/ledger/board.jsonl").unlink()
    done = pfl("leaderboard", "add", "fedper", "--table", "board")
    assert done.returncode == 2
    assert "`pfl init --table board --results` copies them" in done.stderr
    assert ran == []
