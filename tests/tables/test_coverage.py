"""Every printed cell of the papers is pinned, or its paper says why not."""

from __future__ import annotations

from collections import Counter

from pipeline.spec.paths import table_names
from pipeline.spec.published import published_cells
from pipeline.spec.table import load_table, printed_cells


def test_every_printed_cell_is_the_target_of_one_pinned_cell_or_listed(pins, printed, papers):
    targets = Counter(pin.printed for pin in pins if pin.printed)
    wrong = {
        cell: targets[cell]
        for paper, cells in printed.items()
        for cell in cells
        if targets[cell] != (0 if cell.table in papers[paper].not_runs else 1)
    }
    assert targets
    assert not wrong


def test_every_released_result_is_compared_with_one_cell(papers):
    tables = [load_table(name) for name in table_names()]
    for paper, facts in papers.items():
        for file in facts.released_results:
            released = published_cells(paper, file)
            wanted = [
                cell
                for table in tables
                if table.published and (table.published.paper, table.published.file) == (paper, file)
                for cell in printed_cells(table).values()
            ]
            assert sorted(wanted, key=released.index) == released


def test_every_pinned_cell_has_a_printed_one(pins):
    assert [str(pin) for pin in pins if pin.printed is None] == []


def test_what_is_listed_as_no_run_is_printed_and_has_a_reason(papers, printed):
    for paper, facts in papers.items():
        for table, reason in facts.not_runs.items():
            assert any(cell.table == table for cell in printed[paper])
            assert reason


def test_a_printed_cell_names_the_folder_of_its_paper(printed):
    assert [name for name, cells in printed.items() if {cell.paper for cell in cells} != {name}] == []
