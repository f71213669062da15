"""Class probabilities from scores."""

from __future__ import annotations

import numpy as np
from scipy.special import softmax


def probabilities(scores: np.ndarray) -> np.ndarray:
    """The softmax of ``scores``, or ``scores`` itself if each row is a distribution: (n, classes).

    This is the case in kNN-Per. A class whose score is -inf has probability 0.
    """
    distributions = (scores >= 0).all() and np.allclose(scores.sum(1), 1, rtol=0, atol=1e-5)
    chosen: np.ndarray = scores if distributions else softmax(scores, axis=1)
    return chosen
