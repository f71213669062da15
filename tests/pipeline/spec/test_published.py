"""The papers' printed results."""

from __future__ import annotations

import pytest

from pfl.core.errors import InvalidInput
from pipeline.spec.axes import Row, Setting, target
from pipeline.spec.published import PublishedCell, find, published_cells
from tests.repository import copy_numbers

DIRICHLET = PublishedCell(dataset="cifar10", partition="dirichlet", partition_arg="alpha=0.1", clients=100)


def wanted(method: str, setting: PublishedCell = DIRICHLET, **words) -> PublishedCell:
    return setting.override(PublishedCell(**{"method": method, "metric": "accuracy", **words}))


def test_released_accuracies_of_clients_average_to_that_of_all():
    released = published_cells("spfl", "plga_released.csv")
    clients = {cell.variant: cell.mean for cell in released if cell.method == "plga"}
    every = [clients[f"round=800;client={k}"] for k in range(1, 11)]
    assert sum(every) / 10 == pytest.approx(clients["round=800;client=average"], abs=0.01)


def test_the_last_six_rows_of_spfls_table_1_are_doubtful_and_the_first_two_are_not():
    doubts = {cell.method: cell.doubt for cell in published_cells("spfl") if cell.table == "1"}
    intact = {"fedavg", "fedupdate"}
    assert {method for method, doubt in doubts.items() if not doubt} == intact
    others = {doubt for method, doubt in doubts.items() if method not in intact}
    assert others == {"reassembled from scattered text"}


def test_a_number_keeps_its_value_its_deviation_and_its_note():
    cell = find(published_cells("pfedsim"), "3", wanted("local"))
    assert cell is not None
    assert (cell.mean, cell.std, cell.note) == (84.30, 0.81, "")


def test_a_paper_without_deviations_has_none():
    assert all(cell.std is None for cell in published_cells("fedsimsup"))


def test_a_method_that_the_paper_does_not_print_has_no_number():
    assert find(published_cells("pfedsim"), "3", wanted("fedsimsup")) is None


def test_only_accuracies_are_held_against_accuracies():
    cells = published_cells("pfedsim")
    emnist = wanted("fedavg", dataset="emnist")
    assert find(cells, "7", emnist) is None
    assert find(cells, "7", wanted("fedavg", emnist, metric="seconds_per_sample")) is not None


def test_words_that_fit_several_printed_cells_are_refused():
    either = PublishedCell(dataset="cifar10", partition="dirichlet", partition_arg="alpha=0.1")
    with pytest.raises(InvalidInput, match="give 'clients', one of 100, 50"):
        find(published_cells("fedsimsup"), "1", wanted("local", either))
    with pytest.raises(InvalidInput, match=r"give 'variant', one of rho=0, rho=0\.1"):
        find(published_cells("pfedsim"), "6", wanted("pfedsim"))


def test_a_cell_that_a_file_has_twice_is_refused():
    cells = published_cells("pfedsim")
    with pytest.raises(InvalidInput, match="the paper's CSV file has the cell twice"):
        find([*cells, *cells], "3", wanted("local"))


def test_a_row_says_which_variant_and_which_method_the_paper_prints():
    words = {"method": "pfedsim", "variant": "rho=0.3"}
    row = Row.model_validate({"method": "pfedsim", "as": "rho-0.3", "published": words})
    wanted = target(Setting(partition="dirichlet", published=DIRICHLET), row)
    assert wanted is not None
    cell = find(published_cells("pfedsim"), "6", wanted)
    assert cell is not None
    assert (cell.mean, cell.variant) == (85.89, "rho=0.3")


def test_the_variants_of_a_setting_and_a_row_are_joined():
    setting = PublishedCell(dataset="mnist", variant="exp=3-1-1")
    cell = find(published_cells("spfl"), "6", wanted("local", setting, variant="client=4"))
    assert cell is not None
    assert cell.variant == "exp=3-1-1;client=4"


def test_a_setting_that_no_paper_prints_has_no_target():
    assert target(Setting(partition="dirichlet"), Row(method="local")) is None


def test_an_unknown_paper_or_file_is_named_with_the_nearest():
    with pytest.raises(InvalidInput, match=r"published\.paper: pfedsmi .*did you mean 'pfedsim'"):
        published_cells("pfedsmi")
    with pytest.raises(InvalidInput, match=r"published\.file: .*did you mean 'plga_released\.csv'"):
        published_cells("spfl", "plga-released.csv")


@pytest.mark.parametrize("line", ["82;4", "82.4,,note,and more", "nan,,", "82.4,inf,"])
def test_a_line_without_the_numbers_is_named(tmp_path, line, monkeypatch):
    monkeypatch.chdir(tmp_path)
    copy_numbers(tmp_path)
    file = tmp_path / "papers/fedsimsup/published.csv"
    header = file.read_text().splitlines()[0]
    names = header.split(",")
    before = ["1" if name == "clients" else "x" for name in names[: names.index("mean")]]
    file.write_text(f"{header}\n{','.join(before)},{line}\n")
    with pytest.raises(InvalidInput, match=r"published\.csv:2: the line is not .*the columns"):
        published_cells("fedsimsup")
