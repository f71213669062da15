"""What is shown while a simulation runs, and drawn while something takes long."""

from __future__ import annotations

import pytest

from pfl.core.terminal import bar
from pfl.engine.metrics import Accuracy, Evaluated
from pfl.run.progress import progress


def evaluated(round):
    reached = Accuracy(71.25, 70.0, 70.0, 0.5)
    return Evaluated(round=round, post_local=reached, train_loss=0.1, bytes_down=0, bytes_up=0)


@pytest.mark.parametrize(
    ("now", "newest", "moment", "line"),
    [
        (5, evaluated(5), "post_local", "fedavg: round 5 of 9, accuracy 71.25 %"),
        (7, evaluated(5), "post_local", "fedavg: round 7 of 9, accuracy 71.25 % in round 5"),
        (5, evaluated(5), "adapted", "fedavg: round 5 of 9"),
        (3, None, "post_local", "fedavg: round 3 of 9"),
    ],
)
def test_an_accuracy_of_another_round_or_moment_is_not_shown_as_this_one(
    now, newest, moment, line, monkeypatch, capsys
):
    monkeypatch.setattr("pfl.run.progress.live", lambda: False)
    monkeypatch.setattr("pfl.run.progress.SECONDS", 0)
    with progress(9, "fedavg", moment) as on_round:
        on_round(now, 9, newest)
    assert capsys.readouterr().err == line + "\n"


@pytest.mark.parametrize(("watched", "drawn"), [(True, 60), (False, 2)])
def test_a_bar_is_drawn_at_each_update_for_a_person_and_twice_a_minute_in_a_log_file(
    watched, drawn, monkeypatch, capsys
):
    monkeypatch.setattr("pfl.core.terminal.live", lambda: watched)
    reading = bar("reading", " images", total=600, shown=True)
    began = reading.start_t
    for second in range(1, 61):
        reading._time = lambda now=began + second: now
        reading.update(10)
    assert capsys.readouterr().err.count("reading") == drawn
    reading.close()


def test_a_bar_that_is_not_to_be_shown_prints_nothing(capsys):
    with bar("reading", " images", total=10, shown=False) as reading:
        reading.update(10)
    assert capsys.readouterr().err == ""
