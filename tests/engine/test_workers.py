"""Worker processes share the clients of a round, and no result depends on them."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch

from pfl.core.config import Execution
from pfl.core.errors import InvalidInput
from pfl.engine import workers
from pfl.engine.device import workers_for
from pfl.engine.workers import Workers

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _every_call_is_worthwhile(monkeypatch):
    monkeypatch.setattr(workers, "WORTHWHILE", -1.0)


@pytest.mark.parametrize("items", [50, 50_000])
def test_work_is_divided_and_returned_in_order(items):
    parent = os.getpid()

    def work(k: int) -> tuple[int, int]:
        return k * k, os.getpid()

    costs = [1.0] * items
    squares, processes = zip(*Workers(3).map("squares", _slow_in(parent, work), costs), strict=True)
    assert squares == tuple(k * k for k in range(items))
    assert {*processes} != {parent}


def refuse() -> None:
    raise InvalidInput("lr", 3, "a smaller one")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("end", "error", "said"),
    [(refuse, InvalidInput, "a smaller one"), (die, MemoryError, "smaller --workers")],
)
def test_the_end_of_a_worker_is_an_exception_in_the_simulation(end, error, said):
    parent = os.getpid()

    def work(k: int) -> int:
        if os.getpid() != parent:
            end()
        return k

    with pytest.raises(error, match=said):
        Workers(2).map(end.__name__, _slow_in(parent, work), [1.0] * 8)


def _slow_in(parent: int, work):
    """``work``, whose first item in the parent waits until a worker has taken one."""

    def slowed(k: int):
        if os.getpid() == parent:
            time.sleep(0.2)
        return work(k)

    return slowed


def test_short_work_stays_in_one_process(monkeypatch):
    monkeypatch.setattr(workers, "WORTHWHILE", 10.0)
    assert set(Workers(2).map("short", lambda _: os.getpid(), [1.0] * 4)) == {os.getpid()}


def test_no_worker_outlives_the_call():
    Workers(3).map("leftover", lambda k: k, [1.0] * 9)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_an_interruption_during_a_fork_is_raised_and_leaves_no_worker():
    hooks = [True]
    os.register_at_fork(after_in_parent=lambda: hooks and os.kill(os.getpid(), signal.SIGINT))
    try:
        with pytest.raises(KeyboardInterrupt):
            Workers(2).map("interrupted", lambda k: k, [1.0] * 9)
    finally:
        hooks.clear()  # a hook cannot be taken back
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_by_default_there_is_a_worker_for_each_core(monkeypatch):
    monkeypatch.setattr("joblib.cpu_count", lambda: 8)
    monkeypatch.setattr(workers, "available", lambda: True)
    assert workers_for(Execution(device="cpu"), CPU) == 8
    assert workers_for(Execution(device="cpu", threads=4), CPU) == 2
    assert workers_for(Execution(device="cpu", workers=3), CPU) == 3
    assert workers_for(Execution(device="cpu", backend="stacked"), CPU) == 1
    monkeypatch.setattr(workers, "available", lambda: False)
    assert workers_for(Execution(device="cpu", workers=3), CPU) == 1
