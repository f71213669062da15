"""Ray that dies under a sweep."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from pfl.core.errors import InvalidInput
from pipeline.sweep import guard
from pipeline.sweep.guard import Guard
from tests.pipeline.running import wait_until

HERE = "this machine"


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The exit statuses with which the process would have been ended."""
    statuses: list[int] = []
    monkeypatch.setattr(guard, "PERIOD", 0.01)
    monkeypatch.setattr(guard, "GRACE", 0.1)
    monkeypatch.setattr(guard.os, "_exit", statuses.append)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: HERE))
    return statuses


def answer(monkeypatch: pytest.MonkeyPatch, nodes: Callable[[], Any]) -> None:
    monkeypatch.setattr(ray, "nodes", nodes)


def test_a_ray_that_lives_is_not_complained_about(ended, monkeypatch):
    monkeypatch.setattr(guard, "SILENCE", 1.0)
    answer(monkeypatch, lambda: [{"NodeID": HERE, "Alive": True}])
    with closing(Guard()) as watched, watched:
        time.sleep(1.5)
        watched.check()
    assert not ended


@pytest.mark.usefixtures("ended")
def test_services_that_have_died_are_one_line_that_says_how_to_go_on(monkeypatch):
    answer(monkeypatch, lambda: [{"NodeID": HERE, "Alive": False}, {"NodeID": "another", "Alive": True}])
    with closing(Guard()) as watched, watched:
        wait_until(lambda: watched.error, seconds=10)
        with pytest.raises(InvalidInput, match="the same command continues") as caught:
            watched.check()
        assert "\n" not in str(caught.value)


def test_a_process_that_waits_for_a_dead_ray_is_ended(ended, monkeypatch, capsys):
    answer(monkeypatch, lambda: [{"NodeID": HERE, "Alive": False}])
    with Guard():
        wait_until(lambda: ended, seconds=10)
    assert ended == [2]
    assert capsys.readouterr().err.startswith("pfl: error: Ray: its services on this machine have died")


def test_a_process_that_leaves_a_dead_ray_in_time_lives_on(ended, monkeypatch):
    monkeypatch.setattr(guard, "GRACE", 1.0)
    answer(monkeypatch, lambda: [{"NodeID": HERE, "Alive": False}])
    with closing(Guard()) as watched, watched:
        wait_until(lambda: watched.error, seconds=10)
    time.sleep(1.5)
    assert not ended


@pytest.fixture
def silence() -> Iterator[threading.Event]:
    ended = threading.Event()
    yield ended
    ended.set()


def test_a_head_node_that_does_not_answer_is_given_up(ended, monkeypatch, silence):
    monkeypatch.setattr(guard, "SILENCE", 0.05)
    answer(monkeypatch, lambda: [{"NodeID": HERE, "Alive": silence.wait()}])
    with Guard() as watched:
        wait_until(lambda: watched.error, seconds=10)
    assert "its head node has not answered" in str(watched.error)
    wait_until(lambda: ended, seconds=10)
