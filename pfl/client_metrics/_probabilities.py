"""Class probabilities of scores."""

from __future__ import annotations

import numpy as np
from scipy.special import softmax


def probabilities(scores: np.ndarray) -> np.ndarray:
    """(n, classes): the softmax of ``scores``, or ``scores`` themselves if each row is a distribution.

    The rows of kNN-Per are. A class whose score is -inf has probability 0.
    """
    distributions = (scores >= 0).all() and np.allclose(scores.sum(1), 1, rtol=0, atol=1e-5)
    chosen: np.ndarray = scores if distributions else softmax(scores, axis=1)
    return chosen
