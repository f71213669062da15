"""Wall time."""

from __future__ import annotations

from pfl.run.trials import Record
from pipeline.columns import Column


def wall(record: Record) -> float:
    """Wall time of a run in seconds, summed over all segments of a resumed run."""
    return record.measured.wall_seconds


seconds = Column(
    "Wall time (s)",
    wall,
    "The wall time is measured while other runs share the machine, so it compares no methods: "
    "reports/engineering/speed does.",
)
