"""Timing of computations on a device without synchronisation."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Stopwatch:
    """Accumulates the time of computations on ``device`` inside `running`, in seconds."""

    def __init__(self, device: torch.device):
        self._on_gpu = device.type == "cuda"
        self._seconds = 0.0
        self._unread: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._paused = False

    @property
    def seconds(self) -> float:
        """The time so far. Waits for the device."""
        for began, ended in self._unread:
            ended.synchronize()
            self._seconds += began.elapsed_time(ended) / 1e3
        self._unread.clear()
        return self._seconds

    @seconds.setter
    def seconds(self, value: float) -> None:
        self._seconds = value
        self._unread.clear()

    @contextmanager
    def running(self) -> Iterator[None]:
        """A context in which time is measured."""
        if self._paused:
            yield
        elif self._on_gpu:
            began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            began.record()
            yield
            ended.record()
            self._unread.append((began, ended))
        else:
            start = time.perf_counter()
            yield
            self._seconds += time.perf_counter() - start

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A context in which no time is measured."""
        self._paused = True
        yield
        self._paused = False
