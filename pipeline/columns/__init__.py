"""Quantities of a run that reports show, one per file. Plugins add more through entry points of this
package's name.

They appear in the section "Clients and costs" of every report and in table.csv, in the order of their names.
The accuracies of unseen clients and the metrics of a table follow them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeVar

from pfl.client_metrics import CLIENT_METRICS
from pfl.core.registry import Registry
from pfl.run.trials import Record

T = TypeVar("T")
Goal = Literal["maximize", "minimize"]


@dataclass(frozen=True)
class Column:
    """A quantity of one run; reports show its mean over the seeds.

    Args:
        heading: the heading, with the unit.
        of: maps a record to its quantity, or to None if the record has none.
        explanation: a sentence below the table; empty if the heading suffices.
        goal: makes the quantity an objective of searches; None for one that depends on clock or machine.
    """

    heading: str
    of: Callable[[Record], float | None]
    explanation: str = ""
    goal: Goal | None = None


def _metric(name: str, average: Literal["pooled", "client_mean"], record: Record) -> float | None:
    """The quantity of a metric beside accuracy (`pfl.client_metrics`); NaN is no quantity."""
    metric = record.metrics.scalars.get(name)
    value: float = getattr(metric, average) if metric else math.nan
    return None if math.isnan(value) else value


def _unseen(stage: Literal["received", "adapted", "scratch"], record: Record) -> float | None:
    """The pooled accuracy of the unseen clients (`pfl.engine.metrics.Unseen`)."""
    unseen = record.metrics.unseen
    return unseen.pooled[stage] if unseen else None


UNSEEN = {
    "unseen_received": Column(
        "Unseen clients: received (%)",
        partial(_unseen, "received"),
        "Unseen clients took no part in training, and all other numbers are of the clients that did. Their "
        "accuracy is pooled over their test samples: with what the method gives a new client "
        "(docs/methods.md); after the method's adaptation, or local epochs of its local program if it has "
        "none; and after as many epochs of local training from scratch.",
    ),
    "unseen_adapted": Column("Unseen clients: adapted (%)", partial(_unseen, "adapted")),
    "unseen_scratch": Column("Unseen clients: from scratch (%)", partial(_unseen, "scratch")),
}
"""Columns of tables with unseen clients, by name."""


def columns_of(records: Sequence[Record]) -> dict[str, Column]:
    """The `COLUMNS`, and for ``records`` that have them, those of unseen clients and two for each metric that
    is a single number, by name; "metric_" is prefixed to a name that another column has."""
    columns = dict(COLUMNS)
    if any(record.metrics.unseen for record in records):
        columns |= distinct("metric_", UNSEEN, columns)
    for name in sorted({name for record in records for name in record.metrics.scalars}):
        about = CLIENT_METRICS.summary(name) if name in CLIENT_METRICS else ""
        explanation = f"{name}: {about}" if about else ""
        averages = {
            name: Column(f"{name}, pooled", partial(_metric, name, "pooled"), explanation),
            f"{name}_client_mean": Column(f"{name}, client mean", partial(_metric, name, "client_mean")),
        }
        columns |= distinct("metric_", averages, columns)
    return columns


def distinct(prefix: str, columns: Mapping[str, T], taken: Container[str]) -> dict[str, T]:
    """``columns``, with a prefix on each name that another column has.

    >>> distinct("setting_", {"iid": 1, "rank": 2}, {"method", "rank"})
    {'iid': 1, 'setting_rank': 2}
    """

    def free(name: str) -> str:
        return free(prefix + name) if name in taken else name

    return {free(name): column for name, column in columns.items()}


COLUMNS: Registry[Column] = Registry("report column", "pipeline.columns")
