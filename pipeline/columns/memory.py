"""Peak memory."""

from __future__ import annotations

from pfl.run.trials import Record
from pipeline.columns import Column


def peak(record: Record) -> float:
    """The peak memory of the process or of the GPU, in 10^6 bytes."""
    return record.measured.peak_memory_bytes / 1e6


memory = Column("Peak memory (MB)", peak, "Peak memory is that of the whole process, or of the GPU.")
