"""Spread of the clients' accuracies, a measure of fairness (Li et al., 2020, https://arxiv.org/abs/1905.10497)."""

from __future__ import annotations

from operator import attrgetter

from pipeline.columns import Column

deviation = Column(
    "SD over clients",
    attrgetter("metrics.client_deviation"),
    "SD over clients is the standard deviation of the same accuracies, in points.",
    "minimize",
)
