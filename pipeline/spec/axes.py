"""The two axes of a table: settings are its columns, methods its rows."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from pipeline.spec.published import PublishedCell
from pipeline.spec.reported import EvaluationOverride
from pipeline.spec.schedule import Schedule
from pipeline.spec.search_space import Search
from pipeline.spec.yaml import Strict

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
"""Pattern of the names of tables, settings and rows, which also name folders and files."""
AVERAGE = "average"
"""Name of the column `Table.average`."""
Name = Annotated[str, Field(pattern=NAME)]


def short_form(key: str, model: type[Strict]) -> BeforeValidator:
    """A validator that accepts a bare string as short for the mapping with only ``key``."""
    return BeforeValidator(
        lambda value: {key: value} if isinstance(value, str) else value, json_schema_input_type=str | model
    )


class Setting(Strict):
    """A column: how the data are partitioned. The short form is the partition alone."""

    partition: str
    """`RULE:ARG[,KEY=VALUE...]`; see `pfl partitions`."""
    label: str | None = None
    """The column's heading; by default the setting's name."""
    clients: int | None = Field(default=None, ge=1)
    """Number of clients, instead of the table's."""
    dataset: str | None = None
    """Data set, instead of the table's."""
    model: str | None = None
    """Network, instead of the table's."""
    schedule: Schedule = Schedule()
    """Training options, instead of the table's."""
    evaluation: EvaluationOverride = EvaluationOverride()
    """Reported numbers, instead of the table's."""
    published: PublishedCell | None = None
    """Which printed cells belong to this column."""


class AverageColumn(Strict):
    """A last column: each row's mean over the settings."""

    label: str = "Average"
    """The column's heading."""
    published: PublishedCell | None = None
    """Which printed cells belong to this column."""


class RowOverride(Strict):
    """Differences of a row in one setting."""

    partition: str | None = None
    """Partition, instead of the setting's."""
    params: dict[str, Any] = {}
    """Hyperparameters, added to the row's."""
    schedule: Schedule = Schedule()
    """Training options, instead of the row's."""


class Row(Strict):
    """A row: a method with its hyperparameters. The short form is the method's name alone."""

    method: str
    """See `pfl methods`."""
    name: Name | None = Field(default=None, alias="as")
    """The row's name, if a method has several rows; by default the method's name."""
    label: str | None = None
    """The row's heading; by default its own name (`as`), or the method's printed name, as in `pFedSim`."""
    clients: int | None = Field(default=None, ge=1)
    """Number of clients, instead of the setting's."""
    params: dict[str, Any] = {}
    """Hyperparameters of the method; omitted ones have their defaults."""
    schedule: Schedule = Schedule()
    """Training options, instead of the setting's."""
    settings: dict[str, RowOverride] = {}
    """By setting: differences of this row in that setting."""
    evaluation: EvaluationOverride = EvaluationOverride()
    """Reported numbers, instead of the setting's."""
    search: Search | None = None
    """The hyperparameter search of this row, instead of the table's."""
    published: PublishedCell | None = None
    """Which printed cells belong to this row; by default those of its name."""

    @property
    def id(self) -> str:
        return self.name or self.method

    def partition_in(self, setting: str) -> str:
        """The name of the row's partition: the setting's, or a separate one if the row partitions the data
        differently.
        """
        own = self.clients or self.settings.get(setting, RowOverride()).partition
        return f"{setting}.{self.id}" if own else setting


def target(column: Setting | AverageColumn, row: Row) -> PublishedCell | None:
    """The printed cell that a cell is compared with; None if there is none."""
    if column.published is None:
        return None
    wanted = column.published.override(row.published)
    usual = {"method": wanted.method or row.id, "metric": wanted.metric or "accuracy"}
    return wanted.model_copy(update=usual)
