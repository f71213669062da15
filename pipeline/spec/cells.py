"""The cells of a table: each setting with each row, as one pinned configuration."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pfl.core.config import Config
from pfl.core.errors import InvalidInput
from pfl.run.validation import validated
from pipeline.spec.axes import Row, RowOverride, Setting
from pipeline.spec.paths import table_file
from pipeline.spec.reported import Evaluation
from pipeline.spec.search_space import Search
from pipeline.spec.table import Table
from pipeline.spec.yaml import located


@dataclass(frozen=True)
class Cell:
    """A cell of the table, a row in a setting, with its pinned configuration."""

    table: str
    setting: str
    row: str
    dataset: str
    partition: str
    clients: int | None
    config: Config
    """Validated, with the method's defaults filled in."""
    evaluation: Evaluation
    search: Search | None
    partition_name: str
    """See `Row.partition_in`."""

    @property
    def id(self) -> str:
        return f"{self.setting}/{self.row}"

    @property
    def division(self) -> tuple[str, str, int | None]:
        """What determines the partition."""
        return self.dataset, self.partition, self.clients


def cells(name: str, table: Table) -> tuple[Cell, ...]:
    """The cells of a table, column by column.

    Raises:
        InvalidInput: a name is unknown, a value outside its range, or two partitions have one name; the
            message names file and cell.
    """
    file = table_file(name)
    whole = tuple(
        _cell(name, file, table, setting_name, setting, row)
        for setting_name, setting in table.settings.items()
        for row in table.methods
    )
    named: dict[str, Cell] = {}
    for cell in whole:
        other = named.setdefault(cell.partition_name, cell)
        if cell.division != other.division:
            with located(str(file)):
                accepted = f"another name, because {other.id} has its own partition of this name"
                raise InvalidInput("settings", cell.partition_name, accepted)
    return whole


def by_partition(cells: Iterable[Cell]) -> dict[str, Cell]:
    """One of the cells of each partition, by the partition's name."""
    return {cell.partition_name: cell for cell in cells}


def _cell(name: str, file: Path, table: Table, setting_name: str, setting: Setting, row: Row) -> Cell:
    override = row.settings.get(setting_name, RowOverride())
    schedule: dict[str, Any] = {}
    for part in (table.schedule, setting.schedule, row.schedule, override.schedule):
        schedule |= part.model_dump(exclude_none=True)
    with located(f"{file}: cell {setting_name}/{row.id}"):
        config = validated(
            Config(
                method=row.method,
                hyperparameters=row.params | override.params,
                model=setting.model or table.model,
                eval_every=table.evaluation.every,
                metrics=tuple(table.evaluation.metrics),
                **schedule,
            )
        )
        evaluation = table.evaluation.override(setting.evaluation, row.evaluation)
    return Cell(
        table=name,
        setting=setting_name,
        row=row.id,
        dataset=table.datasets[setting_name],
        partition=override.partition or setting.partition,
        clients=row.clients or setting.clients or table.clients,
        config=config,
        evaluation=evaluation,
        search=table.searches.get(row.id),
        partition_name=row.partition_in(setting_name),
    )
