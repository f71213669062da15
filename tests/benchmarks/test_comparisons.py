"""Our partitions beside the figures that papers print of theirs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.comparisons import PFEDSIM_OPTIONS, SPREAD, FigureComparison, pfedsim_table4, spfl_table5
from pfl.data.dataset import Dataset, load
from pfl.data.partition import parse_spec
from pipeline.spec.published import published_cells
from pipeline.spec.table import load_table


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load("digits")


def test_pfedsim_is_compared_under_the_options_that_its_table_pins():
    pinned = {
        parse_spec(setting.partition)[1]
        for setting in load_table("pfedsim-table3").settings.values()
        if setting.partition.startswith("dirichlet:0.1")
    }
    assert pinned == {parse_spec(f"dirichlet:0.1,{PFEDSIM_OPTIONS}")[1]}


def compared(printed: float, *ours: float) -> FigureComparison:
    return FigureComparison("digits", "", "", printed, ours)


def test_a_figure_within_two_standard_deviations_over_the_seeds_matches():
    ours = (90, 100, 110)
    assert compared(119, *ours).matches
    assert compared(81, *ours).matches
    assert not compared(121, *ours).matches
    assert compared(119, *ours).deviations == pytest.approx(1.9)


def test_a_figure_that_no_seed_changes_matches_if_it_is_the_same_when_rounded():
    assert compared(600, 600.2).matches
    assert not compared(600, 601).matches
    assert compared(600, 600.2).deviations is None


def test_the_figures_are_those_of_the_published_file(digits):
    cells = [replace(c, std=12345.0) if c.std else c for c in published_cells("pfedsim")]
    datasets = {"cifar10": digits}
    spread = [c for c in pfedsim_table4(cells, datasets, range(2), "test=0.5") if c.quantity == SPREAD]
    assert [(c.setting, c.printed) for c in spread] == [
        ("Dir(0.1), 100 clients", 12345.0),
        ("Dir(0.5), 100 clients", 12345.0),
    ]


def test_ours_are_of_partitions_by_the_given_options_and_seeds(digits):
    cells = [c for c in published_cells("pfedsim") if c.partition_arg == "alpha=0.5"]
    cells = [replace(c, clients=10) for c in cells]
    capped, free = (
        next(c for c in pfedsim_table4(cells, {"cifar10": digits}, range(3), options) if c.quantity == SPREAD)
        for options in ("min=10,test=0.5", "uncapped,min=10,test=0.5")
    )
    assert len(set(capped.ours)) == 3
    assert capped.mean < free.mean


def test_a_setting_that_spfl_prints_for_two_ways_of_training_is_compared_once(digits):
    comparisons = spfl_table5(published_cells("spfl"), {"mnist": digits}, seeds=range(2))
    assert [(c.setting, c.quantity, c.printed) for c in comparisons] == [
        ("6 classes, IID, 10 clients", "training samples per client", 2800),
        ("6 classes, IID, 10 clients", "test samples per client", 700),
        ("6 classes, non-IID, 10 clients", "training samples per client", 2800),
        ("6 classes, non-IID, 10 clients", "test samples per client", 700),
    ]
    mine = digits.n_train / 10 * 0.6  # ten clients, six classes of ten
    assert [c.mean for c in comparisons] == pytest.approx([0.8 * mine, 0.2 * mine] * 2, abs=3)


def test_the_two_emnists_are_told_apart(digits):
    by_class = pfedsim_table4(published_cells("pfedsim"), {"emnist_byclass": digits}, [0], "test=0.5")
    balanced = spfl_table5(published_cells("spfl"), {"emnist_byclass": digits}, seeds=[0])
    assert {c.dataset for c in by_class} == {"emnist_byclass"}
    assert balanced == []
