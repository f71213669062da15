"""Trackers of plugins and trackers that fail, during a sweep and after it."""

from __future__ import annotations

import json
from collections.abc import Container
from itertools import chain
from pathlib import Path

import pytest

from pfl.core.errors import InvalidInput
from pipeline.store.workspace import table_lock
from pipeline.sweep.environment import check_environment
from pipeline.sweep.tracking import BackgroundTracker, track_again, track_report
from pipeline.trackers import TRACKERS, Tracker
from tests.pipeline.fake_results import fail, fake_results, record_of, results_of, write_results
from tests.pipeline.running import json_lines, wait_until
from tests.refusal import refusal


class Lines(Tracker):
    """Writes everything as lines of JSON to one file, except the entries whose places are listed."""

    failures: Container[int] = ()
    tries = 0

    def run(self, cell, record, trial):
        self.write(cell, record.key, trial)

    def cell(self, result):
        self.write(result.cell)

    def report(self, folder):
        self.write(folder.name)
        return f"report tracked in {self.root}"

    def write(self, *entry):
        Lines.tries += 1
        if Lines.tries in self.failures:
            raise OSError("http://me:secret@host: no space left on device\nsecond line")
        with (self.root / "lines.jsonl").open("a") as file:
            print(json.dumps(entry), file=file)


@pytest.fixture(autouse=True)
def tracker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[Lines]:
    """The tracker of a plugin, which is selected, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(TRACKERS._added, "lines", Lines)
    monkeypatch.setenv("PFL_TRACKER", "lines")
    monkeypatch.setattr(Lines, "tries", 0)
    monkeypatch.setattr("pipeline.sweep.tracking.SECONDS_BETWEEN_TRIES", 0.01)
    return Lines


def lines(root: Path) -> list[list]:
    return json_lines(root / "lines.jsonl")


def enter(root: Path, entries: int = 0) -> BackgroundTracker:
    """A sweep of a cell with two runs, which ends when the tracker has a number of entries."""
    (cell,) = results_of(fake_results(methods=1, settings=1, seeds=2)).cells
    with BackgroundTracker("fake") as tracker:
        for record in cell.pinned.records:
            tracker.run(cell.cell, record, None)
        tracker.cell(cell)
        wait_until(lambda: not entries or len(lines(root)) == entries)
    return tracker


def test_a_tracker_that_fails_costs_two_lines_and_no_result(tracker, monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(tracker, "failures", range(2, 1000))
    assert enter(tmp_path).lost == "http://host: no space left on device"
    first, last = (record.getMessage() for record in caplog.records)
    expected = "lines: http://host: no space left on device; results are safe in the ledger, and the sweep "
    assert first == f"{expected}retries every 0 s; `pfl track fake` adds missing entries once it works"
    assert last == "lines: 2 entries are missing; `pfl track fake` adds them"
    assert len(lines(tmp_path)) == 1


def test_a_tracker_that_works_again_receives_what_has_waited(tracker, monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(tracker, "failures", {1, 2, 4})
    assert enter(tmp_path, entries=3).lost is None
    assert caplog.records[-1].getMessage() == "lines: works again"


def test_a_tracker_that_fails_is_not_asked_for_every_entry(tracker, monkeypatch, tmp_path):
    monkeypatch.setattr(tracker, "failures", range(1, 1000))
    monkeypatch.setattr("pipeline.sweep.tracking.SECONDS_BETWEEN_TRIES", 30.0)
    enter(tmp_path)
    assert tracker.tries <= 2  # at the first entry, and at the end


def test_what_the_last_sweep_and_earlier_ones_used_is_tracked_again(tmp_path):
    results = fake_results(methods=1, settings=1, seeds=2, search=2)
    (cell,) = results["cells"]
    fail(cell["pinned"], 1)
    write_results(results)
    trials = (cell["pinned"], cell["selected"], *cell["searched"])
    rows = list(chain.from_iterable(trial["records"] for trial in trials))
    earlier = {**rows[0], "key": "earlier"}
    keys = {row["key"] for row in rows} | {"earlier"}
    assert track_again("fake", map(record_of, [earlier, rows[0]])) == len(keys)
    entries = lines(tmp_path)
    assert {key for _, key, _ in filter(lambda entry: len(entry) > 1, entries)} == keys
    assert len(entries) == len(keys) + 1
    assert [cell["cell"]] in entries


def test_a_table_that_a_sweep_is_tracking_is_not_tracked_again(tracker):
    write_results(fake_results(methods=1, settings=1, seeds=1))
    with (
        table_lock("fake"),
        pytest.raises(InvalidInput, match=r"fake: in use by another command \(process \d+"),
    ):
        track_again("fake", [])
    assert tracker.tries == 0


def test_a_failure_afterwards_is_one_line_without_a_password(tracker, monkeypatch, tmp_path):
    assert track_report("fake", tmp_path) == f"report tracked in {tmp_path}"
    write_results(fake_results(methods=1, settings=1, seeds=1))
    monkeypatch.setattr(tracker, "failures", range(1000))
    cause = "http://host: no space left on device"
    with pytest.raises(InvalidInput, match=f"tracker: lines .* expected a working tracker: {cause}"):
        track_again("fake", [])
    line = track_report("fake", tmp_path)
    assert line == f"lines: {cause}; `pfl track fake` adds the report later"


def test_nothing_is_passed_again_while_tracking_is_off_which_is_said(monkeypatch):
    write_results(fake_results(methods=1, settings=1, seeds=1))
    monkeypatch.setenv("PFL_TRACKER", "none")
    assert refusal(track_again, "fake", []) == (
        "PFL_TRACKER: none means that tracking is off; "
        "unset it for mlflow, or set it to the name of another tracker"
    )


@pytest.mark.usefixtures("project")
def test_an_unknown_tracker_is_one_line_before_any_compute(monkeypatch):
    monkeypatch.setenv("PFL_TRACKER", "mlfow")
    for check in (check_environment, lambda: BackgroundTracker("small")):
        with pytest.raises(InvalidInput, match=r"tracker: mlfow is not accepted; .*mlflow"):
            check()


@pytest.mark.usefixtures("project")
def test_without_a_tracker_nothing_is_written(monkeypatch, tmp_path):
    monkeypatch.setenv("PFL_TRACKER", "none")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "./mlruns")  # MLflow would not accept it
    assert check_environment() == []
    before = set(tmp_path.rglob("*"))
    assert enter(tmp_path).lost is None
    assert track_report("small", tmp_path) == ""
    assert set(tmp_path.rglob("*")) == before
