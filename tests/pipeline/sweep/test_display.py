"""What a sweep says while it runs."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from pipeline.store.heartbeat import heartbeat_writer
from pipeline.sweep.display import Progress
from tests.pipeline.conftest import fake_run, scheduler_of


def test_a_cell_whose_trials_failed_is_said_to_have_failed(ledger, capsys):
    scheduler = scheduler_of(ledger)
    progress = Progress("small", scheduler)
    while trial := scheduler.next():
        if trial.cell == "dir/fedavg":
            scheduler.fail(trial, "no luck")
        else:
            scheduler.record(trial, fake_run(trial))
        progress.update(1, [])
    output = capsys.readouterr().out
    assert "dir/fedavg: pinned failed" in output
    assert "two/fedavg: pinned 8" in output


def test_trials_under_way_are_shown_with_their_rounds(ledger, capsys, monkeypatch):
    scheduler = scheduler_of(ledger)
    stacks = [[scheduler.next()] for _ in range(3)]  # of which two have a place
    progress = Progress("small", scheduler)
    monkeypatch.setattr("pipeline.sweep.display.SECONDS_BETWEEN_LINES", 0)
    progress.update(2, stacks)
    assert "0 of 48 runs, processes are starting" in capsys.readouterr().out
    heartbeat_writer(stacks[1])(1, 2, None)
    progress.update(2, stacks)
    assert "0 of 48 runs, 2 under way (0 to 50 % of their rounds)" in capsys.readouterr().out


def test_a_terminal_shows_the_cells_under_way_with_their_rounds_and_best_results(ledger, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    scheduler = scheduler_of(ledger)
    with Progress("small", scheduler) as progress:
        for _ in range(16):  # all pinned configurations, and the search of the first cell up to its finalists
            trial = scheduler.next()
            scheduler.record(trial, fake_run(trial))
        under_way = scheduler.next()
        heartbeat_writer([under_way])(1, 2, None)
        progress.update(1, [[under_way]])
        console = Console(width=120, file=io.StringIO())
        console.print(progress._picture())
    first, second, *_, total = (" ".join(line.split()) for line in console.file.getvalue().splitlines())
    assert first == "dir/fedavg 10 of 12 pinned 87.04 ± 0.07 %, best of the search 87.25 % on validation data"
    assert second == "dir/fedprox 2 of 12 round 1 of 2 pinned 87.04 ± 0.07 %"
    assert "small: 16 of 48 runs, 1 under way (100 % of their rounds)" in total


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Stands still until ``now`` is set; a line is said at every update."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("pipeline.sweep.display.time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr("pipeline.sweep.display.SECONDS_BETWEEN_LINES", -1)
    return clock


def test_time_left_counts_what_is_under_way(ledger, capsys, clock):
    scheduler = scheduler_of(ledger)
    progress = Progress("small", scheduler)
    first, second = scheduler.next(), scheduler.next()
    progress.update(1, [[first]])
    scheduler.record(first, fake_run(first))
    progress.update(1, [[second]])
    heartbeat_writer([second])(1, 2, None)
    clock.now = 150.0
    progress.update(1, [[second]])
    assert "1 under way (50 % of their rounds), about 1 h 17 min left" in capsys.readouterr().out


def test_time_left_does_not_count_as_fast_what_a_checkpoint_had(ledger, capsys, clock):
    scheduler = scheduler_of(ledger)
    trial = scheduler.next()
    heartbeat_writer([trial])(1, 2, None)
    progress = Progress("small", scheduler)
    progress.update(1, [[trial]])
    scheduler.record(trial, fake_run(trial))
    clock.now = 50.0
    progress.update(1, [])
    assert "1 of 48 runs, about 1 h 18 min left" in capsys.readouterr().out


def test_the_last_trial_takes_its_time_however_many_could_run_beside_it(ledger, capsys, clock):
    scheduler = scheduler_of(ledger)
    progress = Progress("small", scheduler)
    while scheduler.total - scheduler.done > 1:
        trial = scheduler.next()
        scheduler.record(trial, fake_run(trial))
    last = [scheduler.next()]
    progress.update(2, [last])
    clock.now = 470.0
    progress.update(2, [last])
    assert "47 of 48 runs, about 10.0 s left" in capsys.readouterr().out
