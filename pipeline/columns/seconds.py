"""Wall time."""

from __future__ import annotations

from operator import attrgetter

from pipeline.columns import Column

seconds = Column(
    "Wall time (s)",
    attrgetter("measured.wall_seconds"),
    "The wall time is measured while other runs share the machine, so it compares no methods: "
    "reports/engineering/speed does.",
)
