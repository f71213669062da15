"""A store that fails costs no result."""

from __future__ import annotations

import logging
import shutil
from threading import Event

from mlflow import MlflowClient

from pipeline.store.mlflow_store import MLflowStore
from pipeline.store.tracking import Tracker
from tests.pipeline.fake_results import fake_results, results_of
from tests.pipeline.store.tracking.entering import enter, no_space_left, parent_of, runs_of, trials_of


def test_a_store_that_fails_costs_two_lines_and_no_result(root, monkeypatch, caplog):
    monkeypatch.setattr(MlflowClient, "log_text", no_space_left)
    with caplog.at_level(logging.WARNING, "pipeline.store.tracking"):
        tracker = enter(fake_results(methods=2, settings=1, seeds=2), root)
    first, last = (record.getMessage() for record in caplog.records)
    expected = "MLflow: no space left on device; results are safe in the ledger, and the sweep retries every "
    assert first == expected + "30 s; `pfl track fake` adds missing entries once the store works"
    assert last == "MLflow: 6 entries are missing; `pfl track fake` adds them"
    assert tracker.lost == "no space left on device"
    assert [run.info.status for run in trials_of(root)] == ["KILLED"]


def test_a_store_that_answers_again_receives_what_has_waited(root, monkeypatch, caplog):
    cell = results_of(fake_results(methods=2, settings=1, seeds=2)).cells[0]
    failed = Event()

    def fail_once(*arguments: object) -> None:
        if not failed.is_set():
            failed.set()
            no_space_left()
        log_text(*arguments)

    log_text = MlflowClient.log_text
    monkeypatch.setattr(MlflowClient, "log_text", fail_once)
    with Tracker(root, "fake") as tracker:
        for record in cell.pinned.rows:
            tracker.trial(cell.cell, record)
        assert failed.wait(60)
        tracker.cell(cell)
    assert [run.info.status for run in trials_of(root)] == ["FINISHED"] * 2
    assert parent_of(root).info.status == "FINISHED"
    assert tracker.lost is None
    assert "the store works again" in caplog.records[-1].getMessage()


def test_a_store_that_fails_is_not_asked_for_every_row(root, monkeypatch):
    asked = []

    def failing(*_: object) -> None:
        asked.append(1)
        no_space_left()

    monkeypatch.setattr(MlflowClient, "log_batch", failing)
    enter(fake_results(methods=2, settings=1, seeds=5), root)
    assert len(asked) <= 2  # at the first row, and at the end


def test_a_store_that_cannot_be_opened_costs_two_lines(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nonsense://store")
    enter(fake_results(methods=2, settings=1, seeds=2), tmp_path)
    assert len(caplog.records) == 2
    assert "nonsense" in caplog.text


def test_what_mlflow_says_is_not_cut(root):
    words = " ".join(f"word{number}" for number in range(100))
    assert MLflowStore(root, "fake").cause(ValueError(f"{words}\n[SQL: SELECT 1]")) == words


def test_another_store_is_used(tmp_path, store, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.copy(store, elsewhere)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{elsewhere / 'mlflow.db'}")
    enter(fake_results(methods=2, settings=1, seeds=1), tmp_path / "root")
    assert len(runs_of(elsewhere)) == 4
    assert not (tmp_path / "root/mlflow.db").exists()


def test_a_server_that_is_gone_costs_two_lines_without_its_password(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@127.0.0.1:9")
    enter(fake_results(methods=2, settings=1, seeds=2), tmp_path)
    assert len(caplog.records) == 2
    assert "127.0.0.1" in caplog.text
    assert "secret" not in caplog.text
