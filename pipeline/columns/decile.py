"""Accuracy of the worst tenth of the clients."""

from __future__ import annotations

from pfl.run.trials import Record
from pipeline.columns import Column


def worst(record: Record) -> float | None:
    """See `pfl.engine.metrics.Metrics.worst_decile`."""
    return record.metrics.worst_decile


decile = Column(
    "Worst decile (%)",
    worst,
    "The worst decile is the mean accuracy of the tenth of the clients with the lowest accuracies in the "
    "last round, at the method's own moment.",
    "maximize",
)
