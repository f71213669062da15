"""Ctrl-C and SIGTERM end a sweep, whatever its main thread waits for."""

from __future__ import annotations

import io
import signal
import subprocess
import sys

import psutil
import pytest

from pipeline.sweep.stopping import stoppable
from tests.pipeline.running import wait_until

SIGNALS = [signal.SIGINT, signal.SIGTERM]
STUCK = """
import ctypes
from pipeline.sweep import stopping

stopping.GRACE = 0.1
lock, mutex = ctypes.CDLL(None).pthread_mutex_lock, ctypes.create_string_buffer(64)
with stopping.stoppable("small"):
    lock(mutex)
    print("waiting", flush=True)
    lock(mutex)  # for ever, outside of Python; signals do not end it
"""


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_a_process_whose_main_thread_does_not_come_back_to_python(number):
    process = subprocess.Popen([sys.executable, "-c", STUCK], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_SLEEPING)
    process.send_signal(number)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert said.startswith("\nsmall: stopped. Run the same command to continue")


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_that_was_ignored_before_still_is(number, capsys):
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with stoppable("small"):
            signal.raise_signal(number)
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)
    assert not capsys.readouterr().out


def test_handlers_are_as_before_at_the_end():
    before = [signal.getsignal(number) for number in SIGNALS]
    with stoppable("small"):
        assert [signal.getsignal(number) for number in SIGNALS] != before
    assert [signal.getsignal(number) for number in SIGNALS] == before
    assert signal.set_wakeup_fd(-1) == -1


def test_a_sweep_whose_output_nobody_reads_any_more_can_be_stopped(monkeypatch):
    class Closed(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    with pytest.raises(KeyboardInterrupt), stoppable("small"):
        monkeypatch.setattr(sys, "stdout", Closed())
        signal.raise_signal(signal.SIGTERM)
