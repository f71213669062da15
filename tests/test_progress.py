"""What is shown while a simulation runs."""

from __future__ import annotations

import pytest

from pfl.engine.metrics import Accuracy, Evaluated
from pfl.run.progress import progress


def evaluated(round):
    reached = Accuracy(71.25, 70.0, 70.0, 0.5)
    return Evaluated(round=round, post_local=reached, train_loss=0.1, bytes_down=0, bytes_up=0)


@pytest.mark.parametrize(
    ("now", "newest", "line"),
    [
        (5, evaluated(5), "fedavg: round 5 of 9, accuracy 71.25 %"),
        (7, evaluated(5), "fedavg: round 7 of 9, accuracy 71.25 % in round 5"),
        (3, None, "fedavg: round 3 of 9"),
    ],
)
def test_an_accuracy_of_an_earlier_round_is_not_shown_as_this_round_s(now, newest, line, monkeypatch, capsys):
    monkeypatch.setattr("pfl.run.progress.live", lambda: False)
    monkeypatch.setattr("pfl.run.progress.SECONDS", 0)
    with progress(9, "fedavg", "post_local") as on_round:
        on_round(now, 9, newest)
    assert capsys.readouterr().err == line + "\n"


def test_an_accuracy_at_another_moment_is_not_shown(monkeypatch, capsys):
    monkeypatch.setattr("pfl.run.progress.live", lambda: False)
    monkeypatch.setattr("pfl.run.progress.SECONDS", 0)
    with progress(9, "fedavg", "adapted") as on_round:
        on_round(5, 9, evaluated(5))
    assert capsys.readouterr().err == "fedavg: round 5 of 9\n"
