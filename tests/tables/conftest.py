"""The tables that pin a paper's table, with what each of their cells is held against."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from pipeline.spec.axes import target
from pipeline.spec.cells import Cell, cells
from pipeline.spec.files import table_names
from pipeline.spec.published import FOLDER, Published, find, published_cells
from pipeline.spec.table import Table, load_table
from pipeline.spec.yaml import parse

PAPER_TABLE = re.compile(r"(fedsimsup|pfedsim|spfl|pfedcs|fedcac)-table(\d+)")


@dataclass(frozen=True)
class Pin:
    """A place of a table: a cell, or the average of a row's cells; and the printed cell beside it."""

    table: Table
    row: str
    column: str
    cell: Cell | None
    printed: Published | None

    def __str__(self) -> str:
        return f"{self.table.title}: {self.column}/{self.row}"


@pytest.fixture(scope="session")
def paper_tables() -> dict[str, Table]:
    return {name: load_table(name) for name in table_names() if PAPER_TABLE.fullmatch(name)}


RELEASED = "plga_released"
"""The file of the results that authors released with their code, which no paper prints."""


@pytest.fixture(scope="session")
def printed() -> dict[str, list[Published]]:
    """By paper, every printed cell."""
    return {path.stem: published_cells(path.name) for path in FOLDER.glob("*.csv") if path.stem != RELEASED}


@pytest.fixture(scope="session")
def pins(paper_tables, printed) -> list[Pin]:
    return [pin for name, table in paper_tables.items() for pin in pinned(name, table, printed)]


def pinned(name: str, table: Table, printed: dict[str, list[Published]]) -> Iterator[Pin]:
    """The places of one table."""
    paper, number = PAPER_TABLE.fullmatch(name).groups()
    assert table.published is not None
    assert (table.published.file, table.published.table) == (f"{paper}.csv", number)
    by_id = {cell.id: cell for cell in cells(name, table)}
    for column_name, column in table.columns.items():
        for row in table.methods:
            wanted = target(column, row)
            held_against = wanted and find(printed[paper], number, wanted)
            yield Pin(table, row.id, column_name, by_id.get(f"{column_name}/{row.id}"), held_against)


def read(name: str) -> Any:
    """A YAML file beside the published numbers."""
    return parse(FOLDER / name)
