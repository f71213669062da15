"""Recall of each class."""

from __future__ import annotations

import numpy as np
from sklearn.metrics import recall_score


def recall(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Recall (classes,), in [0, 1]; NaN for a class without samples."""
    classes = np.arange(scores.shape[1])
    each: np.ndarray = recall_score(
        labels, scores.argmax(1), labels=classes, average=None, zero_division=np.nan
    )
    return each
