"""Every printed cell of the five papers is pinned, or it is said why not."""

from __future__ import annotations

from collections import Counter

from pipeline.spec.axes import target
from pipeline.spec.published import find, published_cells
from pipeline.spec.table import load_table
from tests.tables.conftest import RELEASED, read


def test_every_printed_cell_is_the_target_of_one_pinned_cell_or_listed(pins, printed):
    targets = Counter(pin.printed for pin in pins if pin.printed)
    listed = read("not_runs.yaml")
    every = [cell for of_paper in printed.values() for cell in of_paper]
    wrong = {
        cell: targets[cell]
        for cell in every
        if targets[cell] != (0 if cell.table in listed.get(cell.paper, {}) else 1)
    }
    assert not wrong
    assert len(every) == 1365


def test_every_released_result_is_compared_with_one_cell():
    table, released = load_table("spfl-table2-released"), published_cells(f"{RELEASED}.csv")
    assert table.published.file == f"{RELEASED}.csv"
    wanted = [target(column, row) for column in table.columns.values() for row in table.methods]
    compared = [find(released, table.published.table, one) for one in wanted]
    assert sorted(compared, key=released.index) == released


def test_every_pinned_cell_has_a_printed_one(pins):
    assert [str(pin) for pin in pins if pin.printed is None] == []


def test_what_is_listed_as_no_run_is_printed_and_has_a_reason(printed):
    for paper, tables in read("not_runs.yaml").items():
        for table, reason in tables.items():
            assert any(cell.table == table for cell in printed[paper])
            assert reason
