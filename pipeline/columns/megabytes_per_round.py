"""Communication per round."""

from __future__ import annotations

from pfl.run.trials import Record
from pipeline.columns import Column
from pipeline.columns.megabytes import sent_and_received


def per_round(record: Record) -> float:
    """Average traffic of all clients together per round, in 10^6 bytes."""
    return sent_and_received(record) / (record.metrics.stopped_at or int(record.config["rounds"]))


megabytes_per_round = Column("MB per round", per_round, goal="minimize")
