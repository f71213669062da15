"""The papers' printed results."""

from __future__ import annotations

import pytest

from pfl.errors import InvalidInput
from pipeline.config import PublishedSetting
from pipeline.published import FOLDER, find, published_cells

DIRICHLET = PublishedSetting(dataset="cifar10", partition="dirichlet", partition_arg="alpha=0.1", clients=100)


def test_all_printed_cells_are_there():
    files = sorted(path.name for path in FOLDER.glob("*.csv"))
    assert sum(len(published_cells(file)) for file in files) == 1365


def test_a_number_keeps_its_value_its_deviation_and_its_note():
    cell = find(published_cells("pfedsim.csv"), "3", DIRICHLET, "local")
    assert cell is not None
    assert (cell.mean, cell.std, cell.note) == (84.30, 0.81, "")


def test_a_paper_without_deviations_has_none():
    assert all(cell.std is None for cell in published_cells("fedsimsup.csv"))


def test_a_method_that_the_paper_does_not_print_has_no_number():
    assert find(published_cells("pfedsim.csv"), "3", DIRICHLET, "fedsimsup") is None


def test_only_accuracies_are_held_against_accuracies():
    setting = PublishedSetting(
        dataset="emnist", partition="dirichlet", partition_arg="alpha=0.1", clients=100, variant="T=20"
    )
    cells = published_cells("pfedsim.csv")
    assert find(cells, "7", setting, "fedavg") is None
    assert find(cells, "7", setting, "fedavg", metric="seconds_per_sample") is not None


def test_a_setting_that_fits_several_printed_cells_is_refused():
    either = PublishedSetting(dataset="cifar10", partition="dirichlet", partition_arg="alpha=0.1")
    with pytest.raises(InvalidInput, match="give 'clients', one of 100, 50"):
        find(published_cells("fedsimsup.csv"), "1", either, "local")


def test_an_unknown_file_is_named_with_the_nearest():
    with pytest.raises(InvalidInput, match=r"did you mean 'pfedsim\.csv'"):
        published_cells("pfedsmi.csv")
