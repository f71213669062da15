"""Area under the ROC curve, one-vs-rest, averaged over the classes."""

from __future__ import annotations

import numpy as np
from sklearn.metrics import roc_auc_score

from pfl.client_metrics._probabilities import probabilities


def auroc(scores: np.ndarray, labels: np.ndarray) -> float:
    """The mean over the classes that occur in ``labels``, in [0, 1]; NaN if there is only one."""
    share = probabilities(scores)
    classes = np.unique(labels)
    if len(classes) < 2:
        return float("nan")
    return float(np.mean([roc_auc_score(labels == number, share[:, number]) for number in classes]))
