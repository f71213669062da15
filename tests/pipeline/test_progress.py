"""What a sweep says while it runs."""

from __future__ import annotations

from pipeline.progress import Progress
from pipeline.rounds import teller
from tests.pipeline.conftest import agenda_of, fake_run


def test_a_cell_whose_trials_failed_is_said_to_have_failed(ledger, capsys):
    agenda = agenda_of(ledger)
    progress = Progress("small", agenda)
    while trial := agenda.next():
        if trial.cell == "dir/fedavg":
            agenda.fail(trial, "no luck")
        else:
            agenda.record(trial, fake_run(trial))
        progress.update(1, [])
    said = capsys.readouterr().out
    assert "dir/fedavg: pinned failed" in said
    assert "two/fedavg: pinned 8" in said


def test_trials_under_way_are_shown_with_their_rounds(ledger, capsys, monkeypatch):
    agenda = agenda_of(ledger)
    stacks = [[agenda.next()] for _ in range(3)]  # of which two have a place
    progress = Progress("small", agenda)
    monkeypatch.setattr("pipeline.progress.SECONDS_BETWEEN_LINES", 0)
    progress.update(2, stacks)
    assert "0 of 32 trials, processes are starting" in capsys.readouterr().out
    teller(stacks[1])(1, 2, None)
    progress.update(2, stacks)
    assert "0 of 32 trials, 2 under way (0 to 50 % of their rounds)" in capsys.readouterr().out


def test_time_left_counts_what_is_under_way(ledger, capsys, monkeypatch):
    agenda = agenda_of(ledger)
    trial = agenda.next()
    agenda.record(trial, [{**row, "seconds": 100.0} for row in fake_run(trial)])
    under_way = [agenda.next()]
    teller(under_way)(1, 2, None)
    progress = Progress("small", agenda)
    monkeypatch.setattr("pipeline.progress.SECONDS_BETWEEN_LINES", 0)
    progress.update(1, [under_way])
    assert "1 under way (50 % of their rounds), about 50 min 50 s left" in capsys.readouterr().out
