"""What a sweep says while it runs."""

from __future__ import annotations

from pipeline.progress import Progress
from tests.pipeline.conftest import agenda_of, fake_run


def test_a_cell_whose_trials_failed_is_said_to_have_failed(ledger, capsys):
    agenda = agenda_of(ledger)
    progress = Progress("small", agenda)
    while trial := agenda.next():
        if trial.cell == "dir/fedavg":
            agenda.fail(trial, "no luck")
        else:
            agenda.record(trial, fake_run(trial))
        progress.update(1)
    said = capsys.readouterr().out
    assert "dir/fedavg: pinned failed" in said
    assert "two/fedavg: pinned 8" in said
