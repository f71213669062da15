"""Expected calibration error (Guo et al., 2017, https://arxiv.org/abs/1706.04599), with 15 bins."""

from __future__ import annotations

import numpy as np

from pfl.client_metrics._probabilities import probabilities

BINS = 15


def ece(scores: np.ndarray, labels: np.ndarray) -> float:
    """The gap between confidence and accuracy of a bin, averaged over the samples, in [0, 1].

    The confidence is the highest probability; the bins divide [0, 1] into equal intervals, closed above.
    """
    confidence = probabilities(scores).max(1)
    correct = scores.argmax(1) == labels
    bins = np.clip(np.ceil(confidence * BINS) - 1, 0, BINS - 1).astype(int)
    gaps = np.bincount(bins, correct - confidence, minlength=BINS)
    return float(np.abs(gaps).sum() / len(labels))
