"""Total communication."""

from __future__ import annotations

from pfl.run.trials import Record
from pipeline.columns import Column


def sent_and_received(record: Record) -> float:
    """Total traffic of all clients in a run, in 10^6 bytes."""
    return (record.metrics.bytes_up + record.metrics.bytes_down) / 1e6


megabytes = Column(
    "MB in total",
    sent_and_received,
    "MB (10^6 bytes) count what all clients send and receive.",
    "minimize",
)
