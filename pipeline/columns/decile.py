"""Accuracy of the worst tenth of the clients."""

from __future__ import annotations

from operator import attrgetter

from pipeline.columns import Column

decile = Column(
    "Worst decile (%)",
    attrgetter("metrics.worst_decile"),
    "The worst decile is the mean accuracy of the tenth of the clients with the lowest accuracies in the "
    "last round, at the method's own moment.",
    "maximize",
)
