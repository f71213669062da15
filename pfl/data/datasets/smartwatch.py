"""Exercises recorded by a smart watch: 2,369 series, 10 subjects, 7 classes (Burns et al., 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pfl.data.cache import ArrayWriter, Content
from pfl.data.datasets._package import required
from pfl.data.definition import Definition

WINDOW = 100
"""Time steps of a sample: 2 seconds."""


def read(_files: Sequence[Path], out: ArrayWriter) -> Content:
    """Acceleration and rotation about three axes at 50 Hz, from the package seglearn (BSD licence).

    Each of the 140 series is cut into windows without overlap. The columns are ``subject``, ``side`` (left or
    right) and ``series``. Windows of one series are very similar, so ``by:series`` would be easy.
    """
    watch = required("seglearn.datasets", "smartwatch").load_watch()
    for i, (series, label) in enumerate(zip(watch["X"], watch["y"], strict=True)):
        count = len(series) // WINDOW
        windows = series[: count * WINDOW].reshape(count, WINDOW, -1).transpose(0, 2, 1)
        side = "right" if watch["side"][i] else "left"
        out.append(
            windows.astype(np.float32),
            np.full(count, label),
            subject=np.full(count, watch["subject"][i], np.int64),
            side=np.full(count, side, "<U5"),
            series=np.full(count, i),
        )
    return Content(tuple(map(str, watch["y_labels"])))


smartwatch = Definition(shape=(6, WINDOW), classes=7, samples=2369, read=read)
