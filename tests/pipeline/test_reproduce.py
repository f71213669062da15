"""`pfl reproduce`: as many published numbers of a table as a time allows, the most telling first."""

from __future__ import annotations

import dataclasses
import shlex
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from pfl.core.config import CHECKPOINT
from pfl.run.trials import Trial
from pipeline.report.reproduction_page import CheckedCell
from pipeline.report.summary import Entry
from pipeline.spec.imported_trials import PriorTrial, prior_file, prior_text
from pipeline.spec.reported import Evaluation
from pipeline.spec.table import load_table
from pipeline.store.heartbeat import heartbeat_writer
from pipeline.store.ledger import Ledger
from pipeline.store.workspace import checkpoint_folder
from pipeline.sweep import train_sweep
from pipeline.sweep.estimate import Expected
from pipeline.sweep.priorities import plan, share_left
from tests.command import pfl, refused
from tests.pipeline.conftest import SOURCES, fake_run, scheduler_of
from tests.pipeline.running import csv_lines

PAPER = """\
name: Mine
title: A paper for tests
venue: a workshop
year: 2023
facts: [{place: Section 1, model: cnn_digits}]
"""
HEADINGS = "paper,table,dataset,partition,partition_arg,clients,variant,method,metric,mean,std,note"
NUMBERS = {
    ("dir", "fedavg"): 60.0,
    ("dir", "fedprox"): 61.0,
    ("dir", "fedper"): 87.0,
    ("two", "fedper"): 99.0,
}
TABLE = """\
title: A paper's table
dataset: digits
model: cnn_digits
clients: 5
schedule: {participation: 0.5, rounds: 2, epochs: 1, batch_size: 16, lr: 0.05}
settings:
  dir: {partition: "dirichlet:0.5", published: {dataset: dir}}
  two: {partition: "pathological:2", published: {dataset: two}}
methods: [fedavg, fedprox, fedper, fedrep]
seeds: [0, 1]
evaluation: {every: 1}
reference: fedper
published: {paper: mine, table: "1", seeds: 2}
search: {trials: 4}
"""


@pytest.fixture(autouse=True)
def paper(project: Path, ran: list[Trial], monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001 - nothing trains
    """A paper with four numbers in a table, which would also be searched."""
    (project / "tables/small.yaml").write_text(TABLE)
    folder = project / "papers/mine"
    folder.mkdir(parents=True)
    (folder / "paper.yaml").write_text(PAPER)
    lines = [f"mine,1,{column},,,5,,{row},accuracy,{mean},," for (column, row), mean in NUMBERS.items()]
    (folder / "published.csv").write_text("\n".join([HEADINGS, *lines, ""]))
    monkeypatch.setattr("pipeline.reproduce.current_sources", lambda _: SOURCES)
    seconds = {cell: Expected(cell, 1000.0) for cell in ("dir/fedavg", "dir/fedprox")}
    seconds |= {"dir/fedper": Expected("", 100.0), "two/fedper": Expected("", 10.0)}
    monkeypatch.setattr("pipeline.reproduce.dry_runs", lambda *_: seconds)
    monkeypatch.setattr("pipeline.reproduce.slots_here", lambda _: 1)


def runs_of(trials: list[Trial]) -> list[tuple[str, int]]:
    return [(trial.cell, seed) for trial in trials for seed in trial.seeds]


def cells() -> dict[str, dict[str, str]]:
    rows = csv_lines(Path("results/small/reproduction/cells.csv"))
    return {f"{row['setting']}/{row['row']}": row for row in rows}


def page() -> str:
    return Path("results/small/reproduction/README.md").read_text()


def test_the_own_method_and_the_strongest_baseline_come_first_and_cheap_before_expensive(ledger):
    table = load_table("small").model_copy(update={"search": None})
    scheduler = scheduler_of(ledger)
    scheduler.cells = [cell for cell in scheduler.cells if cell.cell.id.partition("/")[2] != "fedrep"]
    expected = {cell.cell.id: Expected("", 1000.0) for cell in scheduler.cells}
    expected |= {"dir/fedavg": Expected("", 1.0), "two/fedper": Expected("", 10.0)}
    ordered = plan(scheduler, table, expected, slots=1, seconds=0).left_out
    first_seeds = [run.cells[0] for run in ordered if run.seed == 0]
    assert first_seeds[:4] == ["two/fedper", "dir/fedper", "dir/fedprox", "dir/fedavg"]
    assert [run.seed for run in ordered] == sorted(run.seed for run in ordered)


def test_a_run_that_continues_costs_the_rounds_that_its_checkpoint_does_not_have(ledger):
    pinned = scheduler_of(ledger).cells[0].pinned.trial
    trial = dataclasses.replace(pinned, seeds=(1,), config=pinned.config | {"rounds": 40})
    heartbeat_writer([trial])(39)
    assert share_left(trial) == 1, "no checkpoint"
    (checkpoint_folder(trial) / CHECKPOINT).touch()
    assert share_left(trial) == 0.25, "a checkpoint every ten rounds"


def test_runs_that_fit_into_the_time_are_computed_and_the_cost_is_printed_before(ran):
    done = pfl("reproduce", "small", "--hours", "0.1")
    assert done.returncode == 0, done.stderr
    assert runs_of(ran) == [("two/fedper", 0), ("dir/fedper", 0), ("two/fedper", 1), ("dir/fedper", 1)]
    lines = done.stdout.splitlines()
    announced = lines.index("computed now: 4 runs, about 4 min 0 s:")
    assert lines[announced - 1] == "small: the published numbers need 8 runs, 0 of them from the ledger"
    assert lines[announced + 1] == "  two/fedper, seed 0: 10.1 s"
    assert "not within 0.1 h: 4 runs, about 1 h 7 min:" in lines
    assert lines[-1] == "results/small/reproduction/README.md"


@pytest.mark.parametrize("out", ["", " --out 'my page'"])
def test_the_page_has_the_command_that_continues_it(out):
    command = f"pfl reproduce small --hours 0 --settings dir{out}"
    assert pfl(*shlex.split(command)[1:]).returncode == 0
    folder = Path("my page" if out else "results/small/reproduction")
    assert f"<sub>`{command}`." in (folder / "README.md").read_text()


def test_the_page_says_what_was_checked_and_what_was_not():
    pfl("reproduce", "small", "--hours", "0.1")
    assert "| dir | FedPer | 87.04 ± 0.07<br><sub>○ 87.00 (+0.04)</sub> | reproduced | 2 |  |  |" in page()
    assert "| dir | FedProx | 61.00 | 2 (about 33 min 20 s) |" in page()
    assert "FedRep" not in page()  # without a published number
    assert cells()["dir/fedper"]["runs_computed"] == "2"
    assert cells()["dir/fedavg"]["runs_pending"] == "2"


def test_an_average_is_checked_once_its_columns_are(edit):
    edit("methods:", "average: {published: {dataset: all}}\nmethods:")
    numbers = Path("papers/mine/published.csv")
    numbers.write_text(numbers.read_text() + "mine,1,all,,,5,,fedper,accuracy,93.0,,\n")
    pfl("reproduce", "small", "--hours", "0.1")
    checked, unchecked = page().partition("## Checked")[2].split("## Not checked")
    assert "| Average | FedPer | " in checked
    assert "Average" not in unchecked


def test_an_average_over_runs_that_diverged_is_checked():
    average = Entry("average", "fedavg", "pinned", Evaluation())
    assert CheckedCell(dataclasses.replace(average, status="diverged"), 0, 0, ()).is_checked
    assert not CheckedCell(average, 0, 0, ()).is_checked


def test_what_the_ledger_has_costs_nothing_and_is_shown_as_such(ran):
    pfl("reproduce", "small", "--hours", "0.1")
    ran.clear()
    done = pfl("reproduce", "small", "--hours", "0")
    assert "8 runs, 4 of them from the ledger" in done.stdout
    assert ran == []
    assert "| reproduced |  | 2 |  |" in page()
    assert (cells()["dir/fedper"]["runs_computed"], cells()["dir/fedper"]["runs_from_ledger"]) == ("0", "2")


def test_trials_imported_for_the_search_do_not_matter():
    trial = PriorTrial("dir/fedavg", 1.0, {"lr": 0.1}, "other, trial 1")
    prior_file("small").write_text(prior_text([trial]))
    done = pfl("reproduce", "small", "--hours", "0.1")
    assert done.returncode == 0, done.stderr


def test_columns_that_are_not_selected_are_named_and_cost_nothing(ran):
    done = pfl("reproduce", "small", "--hours", "9", "--settings", "two", "--out", "checked")
    assert "the published numbers need 2 runs" in done.stdout
    assert runs_of(ran) == [("two/fedper", 0), ("two/fedper", 1)]
    text = Path("checked/README.md").read_text()
    assert "These columns were not selected: dir." in text
    assert "`pfl reproduce small --hours 9 --settings two --out checked`" in text


def test_a_number_that_cannot_be_compared_is_not_computed(ran, edit):
    edit("seeds: 2}", "seeds: 2, incomparable: [{rows: [fedper], why: It is something else.}]}")
    done = pfl("reproduce", "small", "--hours", "9")
    assert done.returncode == 0, done.stderr
    assert {trial.cell for trial in ran} == {"dir/fedavg", "dir/fedprox"}
    assert "Not comparable: FedPer. It is something else." in page()


def test_the_computation_ends_with_the_time_and_the_same_command_continues(monkeypatch):
    def run(scheduler, watch):
        trial = scheduler.next()
        scheduler.record(trial, fake_run(trial))
        clock.now += 400
        watch(1, [])
        pytest.fail("it has continued")

    clock = SimpleNamespace(now=time.monotonic())
    monkeypatch.setattr(train_sweep, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr("pipeline.sweep.cluster.run", run)
    done = pfl("reproduce", "small", "--hours", "0.1")
    assert done.returncode == 0, done.stderr
    assert "small: stopped after 0.1 h; the same command continues" in done.stdout
    assert sum(int(cell["runs_computed"]) for cell in cells().values()) == 1
    assert {record.cell for record in Ledger(SOURCES).successes("small")} == {"two/fedper"}


def test_a_failed_run_is_counted_as_pending_and_ends_with_an_error(monkeypatch):
    def run(scheduler, *_):
        while trial := scheduler.next():
            scheduler.fail(trial, "no luck")

    monkeypatch.setattr("pipeline.sweep.cluster.run", run)
    done = pfl("reproduce", "small", "--hours", "0.1")
    assert (done.returncode, "4 of 4 runs failed" in done.stderr) == (1, True)
    assert cells()["two/fedper"]["runs_pending"] == "2"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["small", "--settings", "tow"], "--settings: tow is not accepted; expected one of dir, two (did"),
        (["small", "--settings", ""], "--settings: '' is not accepted; expected one of dir, two"),
        (["smal"], "table: smal is not accepted; expected one of small"),
        *(
            (
                ["small", "--hours", hours],
                f"--hours: {shown} is not accepted; expected a non-negative number of",
            )
            for hours, shown in (("-1", "-1.0"), ("nan", "nan"))
        ),
        (["small", "--out", "params.yaml"], "params.yaml/README.md is not accepted; expected a file"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_run(ran, arguments, said):
    assert said in refused("reproduce", "--hours", "1", *arguments)
    assert ran == []


def test_an_unknown_tracker_is_one_line_before_any_compute(monkeypatch):
    monkeypatch.setenv("PFL_TRACKER", "mlfow")
    assert "tracker: mlfow is not accepted" in pfl("reproduce", "small", "--hours", "1").stderr
    assert not Path("data").exists()


def test_a_table_without_published_numbers_is_one_line(edit):
    edit('published: {paper: mine, table: "1", seeds: 2}\n', "")
    expected = "table: small is not accepted; expected a table with published numbers that can be compared"
    assert refused("reproduce", "small", "--hours", "1") == f"pfl: error: {expected}"
