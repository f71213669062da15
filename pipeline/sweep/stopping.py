"""Shutdown of a sweep on Ctrl-C or a batch system's SIGTERM."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

GRACE = 5.0
"""Seconds that the main thread has to react to a signal before the process is killed."""


@contextmanager
def stoppable(name: str) -> Iterator[None]:
    """Acknowledge Ctrl-C and SIGTERM immediately, because Ray and MLflow take seconds to end, and then stop.

    A SIGTERM that also reaches Ray's services can leave the main thread in a call that waits for one of them
    and never returns to Python, where signals are handled. Another thread then kills the process, as SIGKILL
    would: finished work is in the ledger and in checkpoints, and Ray ends with this process.

    Args:
        name: name of a table or a figure, for the message.
    """
    noticed = threading.Event()

    def stop(number: int, _: FrameType | None) -> None:
        noticed.set()
        signal.signal(number, signal.default_int_handler)  # print the message once
        _say_stopped(name)
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    heeded = {number for number, handler in before.items() if handler is not signal.SIG_IGN}
    for number in heeded:  # ignored signals stay ignored, as in the background of a script
        signal.signal(number, stop)

    def watch() -> None:
        while received := os.read(signals, 1):  # empty at the end
            if received[0] in heeded and not noticed.wait(GRACE):
                _say_stopped(name)
                os._exit(128 + received[0])

    signals, sent = os.pipe()
    os.set_blocking(sent, False)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    sent_before = signal.set_wakeup_fd(sent)
    try:
        yield
    finally:
        signal.set_wakeup_fd(sent_before)
        os.close(sent)
        watcher.join()
        os.close(signals)
        for number, handler in before.items():
            signal.signal(number, handler)


def _say_stopped(name: str) -> None:
    how = "Run the same command to continue; finished trials are not run again."
    with suppress(OSError):  # the reader of the output may have been stopped, too
        print(f"\n{name}: stopped. {how}", flush=True)
