"""What a trial under way tells the sweep."""

from pipeline.store import heartbeat
from pipeline.store.heartbeat import heartbeat_writer, reached
from tests.pipeline.conftest import scheduler_of


def test_a_round_is_written_about_once_a_second(ledger, monkeypatch):
    trials = [scheduler_of(ledger).next()]
    seconds = iter([10.0, 10.0, 10.9, 11.0, 11.0])  # asked once if it is too early, else twice
    monkeypatch.setattr(heartbeat.time, "monotonic", lambda: next(seconds))
    assert reached(trials) is None
    tell = heartbeat_writer(trials)
    assert reached(trials) == 0
    shown = []
    for round in (1, 2, 3):
        tell(round, 3, None)
        shown.append(reached(trials))
    assert shown == [1, 1, 3]
