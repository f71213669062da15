"""The table by which a baseline is chosen compares every method, each at its own learning rate."""

from __future__ import annotations

from pfl.methods import METHODS
from pipeline.spec.cells import cells
from pipeline.spec.search_space import searched
from pipeline.spec.table import load_table


def test_every_method_has_one_row():
    rows = [row.method for row in load_table("methods-cifar10").methods]
    assert sorted(rows) == sorted(METHODS)


def test_three_learning_rates_are_tried_and_nothing_else():
    for cell in cells("methods-cifar10", load_table("methods-cifar10")):
        assert cell.search.trials == 3
        assert {name: one.search for name, one in searched(cell.config, cell.search).items()} == {
            "lr": (0.01, 0.1)
        }
