"""Spread of the clients' accuracies, a measure of fairness (Li et al., 2020, https://arxiv.org/abs/1905.10497)."""

from __future__ import annotations

import statistics

from pfl.run.trials import Record
from pipeline.columns import Column


def spread(record: Record) -> float | None:
    """Standard deviation of the accuracy over all clients that have test samples, in points."""
    values = [client.accuracy for client in record.metrics.per_client if client.accuracy is not None]
    return statistics.pstdev(values) if values else None


deviation = Column(
    "SD over clients", spread, "SD over clients is the standard deviation of the same accuracies, in points."
)
