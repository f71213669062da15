"""Detect that Ray has died during a sweep; otherwise, Tune would wait forever."""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress

from pfl.core.errors import InvalidInput, Missing

PERIOD = 2.0  # seconds between two requests to the head node
SILENCE = 40.0
"""Seconds without an answer after which the head node counts as dead. After 60, Ray itself ends the process
with a page of log.
"""
GRACE = 10.0
"""Seconds that the main thread has to end the sweep and to leave Ray before the process is killed: the thread
may be blocked in a Ray call.
"""


def has_died(how: str) -> InvalidInput:
    """The error for Ray's death, which says how to continue."""
    again = "a running Ray; the same command continues, and finished trials are not run again"
    return Missing("Ray", how, again)


class Guard:
    """Context that regularly asks Ray's head node whether this machine's services are still running.

    Finished work is in the ledger and in checkpoints, so the sweep only needs to end. `close` is called after
    Ray has shut down, which may block, too.
    """

    def __init__(self) -> None:
        self._lost: str | None = None
        self._answered = time.monotonic()
        self._closing = threading.Event()
        self._closed = threading.Event()
        self._asking = threading.Thread(target=self._ask, daemon=True)

    def __enter__(self) -> Guard:
        self._asking.start()
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        # Ray can end the process if another thread is in a call while it shuts down.
        self._asking.join(PERIOD)

    def close(self) -> None:
        """Do not end the process, even if Ray has died."""
        self._closed.set()

    @property
    def error(self) -> InvalidInput | None:
        """The error to raise if Ray has died; None while it runs."""
        return None if self._lost is None else has_died(self._lost)

    def check(self) -> None:
        """Called on the main thread.

        Raises:
            InvalidInput: Ray has died.
        """
        if error := self.error:
            raise error

    def _ask(self) -> None:
        import ray

        here = ray.get_runtime_context().get_node_id()
        while not self._closing.wait(PERIOD):
            try:
                nodes = ray.nodes()
            except Exception:  # Ray has no class for this; it does not answer any more
                return
            self._answered = time.monotonic()
            if not any(node["Alive"] for node in nodes if node["NodeID"] == here):
                self._lost = "its services on this machine have died (killed, perhaps because memory ran out)"
                return

    def _watch(self) -> None:
        while self._lost is None:
            if self._closing.wait(PERIOD):
                return
            if time.monotonic() - self._answered > SILENCE:
                self._lost = f"its head node has not answered for {SILENCE:.0f} s"
        if self._closed.wait(GRACE):
            return
        with suppress(OSError):
            print(f"pfl: error: {self.error}", file=sys.stderr, flush=True)
        os._exit(2)
