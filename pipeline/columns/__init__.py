"""Quantities of a run that reports show, one per file. Plugins add more through entry points of this
package's name.

They appear in the section "Clients and costs" of every report and in table.csv, in the order of their names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pfl.core.registry import Registry
from pfl.run.trials import Record


@dataclass(frozen=True)
class Column:
    """A quantity of one run; reports show its mean over the seeds.

    Args:
        heading: the heading, with the unit.
        of: maps a record to its quantity, or to None if the record has none.
        explanation: a sentence below the table; empty if the heading suffices.
    """

    heading: str
    of: Callable[[Record], float | None]
    explanation: str = ""


COLUMNS: Registry[Column] = Registry("report column", "pipeline.columns")
