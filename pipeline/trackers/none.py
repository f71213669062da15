"""No tracker: everything is discarded."""

from __future__ import annotations

from pipeline.trackers import Tracker


class NoTracker(Tracker):
    """Discards everything."""
