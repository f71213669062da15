"""Spread of the clients' accuracies, a measure of fairness (Li et al., 2020, https://arxiv.org/abs/1905.10497)."""

from __future__ import annotations

from pfl.run.trials import Record
from pipeline.columns import Column


def spread(record: Record) -> float | None:
    """See `pfl.engine.metrics.Metrics.client_deviation`."""
    return record.metrics.client_deviation


deviation = Column(
    "SD over clients",
    spread,
    "SD over clients is the standard deviation of the same accuracies, in points.",
    "minimize",
)
