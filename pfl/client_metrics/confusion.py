"""Confusion matrix."""

from __future__ import annotations

import numpy as np
from sklearn.metrics import confusion_matrix


def confusion(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Numbers of samples (classes, classes): the row is the label, the column is the prediction."""
    matrix: np.ndarray = confusion_matrix(labels, scores.argmax(1), labels=np.arange(scores.shape[1]))
    return matrix
