"""What a sweep says while it runs."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from pipeline.store.heartbeat import heartbeat_writer
from pipeline.sweep.display import Progress
from pipeline.sweep.estimate import TimeLeft
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


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Stands still until ``now`` is set."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("pipeline.sweep.display.time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def test_through_a_pipe_a_sweep_says_soon_that_it_is_starting_and_then_how_far_it_is(ledger, capsys, clock):
    scheduler = scheduler_of(ledger)
    stacks = [[scheduler.next()] for _ in range(3)]  # of which two have a place
    progress = Progress("small", scheduler)
    said = []
    for clock.now in range(240):
        if clock.now == 5:
            progress.expect(TimeLeft(scheduler, {}), "How much.")
            progress.update(2, stacks)
        if clock.now == 15:
            tell = heartbeat_writer(stacks[1])
            progress.update(2, stacks)
        if clock.now == 25:
            tell(1, 2, None)
            progress.update(2, stacks)
        if clock.now == 35:
            scheduler.record(stacks[1][0], fake_run(stacks[1][0]))
            progress.update(2, [stacks[0], stacks[2]])
        progress.tick()
        said += [(clock.now, line) for line in capsys.readouterr().out.splitlines()]
    assert said[:4] == [
        (5, "How much."),
        (10, "small: 0 of 64 runs, starting (10.0 s)"),
        (20, "small: 0 of 64 runs, 2 under way (0 % of their rounds)"),
        (30, "small: 0 of 64 runs, 2 under way (0 to 50 % of their rounds)"),
    ]
    assert [when for when, _ in said[4:]] == [90, 150, 210]
    assert said[4][1].startswith("small: 1 of 64 runs, about ") and said[4][1].endswith(" left")


def test_a_line_that_comes_while_the_first_trial_begins_is_one(ledger, capsys, monkeypatch):
    scheduler = scheduler_of(ledger)
    progress = Progress("small", scheduler)
    left = TimeLeft(scheduler, {})
    progress.expect(left, "How much.")
    monkeypatch.setattr("pipeline.sweep.display.SECONDS_AT_START", 0)
    monkeypatch.setattr(left, "update", lambda *_: progress.tick())  # as the clock's thread may at any time
    under_way = scheduler.next()
    heartbeat_writer([under_way])(1, 2, None)
    progress.update(1, [[under_way]])
    progress.tick()
    _, first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("small: 0 of 64 runs, starting (")
    assert second == "small: 0 of 64 runs, 1 under way (50 % of their rounds)"


def test_lines_come_by_themselves_as_long_as_a_sweep_runs(ledger, capsys, monkeypatch):
    monkeypatch.setattr("pipeline.sweep.display.SECONDS_AT_START", 0)
    with Progress("small", scheduler_of(ledger)) as progress:
        progress._clock.join(1.2)
    assert "small: 0 of 64 runs, starting (" in capsys.readouterr().out
    assert not progress._clock.is_alive()


def test_a_terminal_shows_the_cells_under_way_with_their_rounds_and_best_results(ledger, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    scheduler = scheduler_of(ledger)
    with Progress("small", scheduler) as progress:
        for _ in range(12):  # all pinned configurations, and the first trials of a search
            trial = scheduler.next()
            scheduler.record(trial, fake_run(trial))
        under_way = scheduler.next()
        heartbeat_writer([under_way])(1, 2, None)
        progress.update(1, [[under_way]])
        console = Console(width=120, file=io.StringIO())
        console.print(progress._picture())
    first, second, *_, total = (" ".join(line.split()) for line in console.file.getvalue().splitlines())
    assert first == (
        "dir/fedavg 6 of 16 round 1 of 2 pinned 87.04 ± 0.07 %, best of the search 86.99 % on validation data"
    )
    assert second == "dir/fedprox 2 of 16 pinned 87.04 ± 0.07 %"
    assert "small: 12 of 64 runs, 1 under way (50 % of their rounds)" in total
