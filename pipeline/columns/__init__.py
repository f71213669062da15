"""Quantities of a run that reports show, one per file. Plugins add more through the entry-point group
`pipeline.columns`, and a project through its folder `plugins/columns/`.

They appear in the section "Clients and costs" of every report and in table.csv, in the order of their names.
The accuracies of unseen clients and the metrics of a table follow them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Literal

from pfl.client_metrics import CLIENT_METRICS
from pfl.core.errors import InvalidInput
from pfl.core.registry import Registry
from pfl.core.text import distinct, first_line
from pfl.run.trials import Record

Goal = Literal["maximize", "minimize"]


@dataclass(frozen=True)
class Column:
    """A quantity of one run; reports show its mean over the seeds.

    Args:
        heading: the heading, with the unit.
        of: maps a record to its quantity, or to None or NaN if the record has none.
        explanation: a sentence below the table; empty if the heading suffices.
        goal: lets searches optimise the quantity; None if it depends on the clock or the machine.
    """

    heading: str
    of: Callable[[Record], float | None]
    explanation: str = ""
    goal: Goal | None = None

    def quantity(self, record: Record) -> float | None:
        """The quantity of a record; None if it has none, or NaN.

        Raises:
            InvalidInput: ``of`` raises an error, or returns something other than a number or None.
        """
        try:
            value = self.of(record)
            if not (value is None or isinstance(value, Real)):
                raise TypeError(f"it returns {value!r}")
        except (Exception, SystemExit) as error:  # a plugin's function may raise anything
            why = f"{type(error).__name__}: {first_line(error)}"
            accepted = f"a function of a record that returns a number or None ({why})"
            raise InvalidInput("report column", self.heading, accepted) from error
        return None if value is None or math.isnan(value) else float(value)


def _metric(name: str, average: Literal["pooled", "client_mean"], record: Record) -> float | None:
    """A metric other than accuracy (`pfl.client_metrics`); None if it is missing."""
    metric = record.metrics.scalars.get(name)
    return getattr(metric, average) if metric else None


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
    """`COLUMNS` and, if ``records`` have them, columns of unseen clients and two per scalar metric, by name.
    A name that another column already has gets the prefix "metric_"."""
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


COLUMNS: Registry[Column] = Registry("report column", "pipeline.columns")
