"""The tables that pin a paper's table, with what each of their cells is held against."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from pipeline.spec.cells import Cell, cells
from pipeline.spec.papers import Paper, load_paper, paper_names
from pipeline.spec.paths import table_names
from pipeline.spec.published import Published, published_cells
from pipeline.spec.table import Table, load_table, printed_cells


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


def is_paper_table(name: str, table: Table) -> bool:
    """Whether a table pins one that its paper prints, and is no study."""
    return bool(table.published) and name == f"{table.published.paper}-table{table.published.table}"


@pytest.fixture(scope="session")
def papers() -> dict[str, Paper]:
    return {name: load_paper(name) for name in paper_names()}


@pytest.fixture(scope="session")
def paper_tables() -> dict[str, Table]:
    tables = {name: load_table(name) for name in table_names()}
    return {name: table for name, table in tables.items() if is_paper_table(name, table)}


@pytest.fixture(scope="session")
def printed() -> dict[str, list[Published]]:
    """By paper, every printed cell."""
    return {name: published_cells(name) for name in paper_names()}


@pytest.fixture(scope="session")
def pins(paper_tables) -> list[Pin]:
    return [pin for name, table in paper_tables.items() for pin in pinned(name, table)]


def pinned(name: str, table: Table) -> Iterator[Pin]:
    """The places of one table."""
    by_id, printed = {cell.id: cell for cell in cells(name, table)}, printed_cells(table)
    for column in table.columns:
        for row in table.methods:
            place = column, row.id
            yield Pin(table, row.id, column, by_id.get(f"{column}/{row.id}"), printed.get(place))
