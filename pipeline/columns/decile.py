"""Accuracy of the worst tenth of the clients."""

from __future__ import annotations

import math
import statistics

from pfl.run.trials import Record
from pipeline.columns import Column


def worst(record: Record) -> float | None:
    """Mean over the tenth of the clients with the lowest accuracies, rounded up to whole clients."""
    values = sorted(client.accuracy for client in record.metrics.per_client if client.accuracy is not None)
    return statistics.fmean(values[: math.ceil(len(values) / 10)]) if values else None


decile = Column(
    "Worst decile (%)",
    worst,
    "The worst decile is the mean accuracy of the tenth of the clients with the lowest accuracies in the "
    "last round, at the method's own moment.",
)
