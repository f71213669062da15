"""The winners of a search as the pins of a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pfl.core.errors import InvalidInput
from pipeline.spec.cells import cells
from pipeline.spec.table import Table, load_table
from pipeline.store.export import export
from tests.pipeline.fake_results import cell_of, fake_results, results_of

CELL = "cifar10-0.1/pfedsim"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def searched(trial: int = 2, **params: Any) -> dict[str, Any]:
    """Results in which one cell has selected a trial with ``params``, and all others the pinned one."""
    results = fake_results(seeds=2, search=3)
    for cell in results["cells"]:
        cell["selection"] = {"trial": 0, "comparisons": []}
    cell = cell_of(results, CELL)
    cell["selection"] = {"trial": trial, "comparisons": [{"trial": trial, "gain": 1.5, "error": 0.25}]}
    cell["searched"][trial]["params"] = params
    return results


def exported(results: dict[str, Any]) -> Table:
    Path("tables").mkdir()
    Path("tables/exported.yaml").write_text(export(results_of(results)))
    return load_table("exported")


def test_a_cell_pins_exactly_what_its_search_selected():
    table = exported(searched(lr=0.012345678901234567, momentum=0.9, rho=0.25))
    configs = {cell.id: cell.config for cell in cells("exported", table)}
    own = configs.pop(CELL)
    assert (own.lr, own.momentum, own.hyperparameters["rho"]) == (0.012345678901234567, 0.9, 0.25)
    assert all(config.lr == 0.05 for config in configs.values())


def test_an_exported_table_searches_nothing_and_is_else_the_same():
    results = searched(lr=0.1)
    results["config"]["methods"][0]["search"] = {"trials": 5}
    table, before = exported(results), results_of(results).config
    assert not table.searches
    kept = {"search", "methods", "sources"}
    assert table.model_dump(exclude=kept) == before.model_dump(exclude=kept)


def test_an_exported_table_has_no_source_of_a_search():
    results = searched(lr=0.1)
    results["config"]["methods"][0]["search"] = {"trials": 5}
    own = f"methods.{results['config']['methods'][0]['method']}.search"
    stated = dict.fromkeys(["search", "search.trials", own, f"{own}.trials"], "our choice")
    results["config"]["sources"] |= stated
    assert not exported(results).sources.keys() & stated.keys()


def test_every_searched_cell_names_the_search_as_its_source():
    sources = exported(searched(lr=0.1)).sources
    search = "the search of fake (commit 0123456789ab, 3 trials)"
    assert sources["methods.pfedsim.settings.cifar10-0.1"] == (
        f"our choice: trial 2, because {search} found it better by +1.50 ± 0.25 points on validation data"
    )
    assert sources["methods.local.settings.cifar10-0.1"] == (
        f"our choice: the pinned configuration, because {search} found no better one"
    )
    assert sources["schedule.rounds"] == "ours: the paper does not say"


def test_the_search_of_an_installed_package_is_named_by_its_version():
    results = searched(lr=0.1)
    results["sources"] = {"commit": "pfl-repro 0.2.0", "dirty": False, "sources": "1" * 64}
    source = exported(results).sources["methods.local.settings.cifar10-0.1"]
    assert "the search of fake (pfl-repro 0.2.0, 3 trials)" in source


def test_a_cell_that_the_sweep_left_out_keeps_what_it_pins():
    results = searched(lr=0.1)
    results["cells"].remove(cell_of(results, CELL))
    table = exported(results)
    assert {cell.config.lr for cell in cells("exported", table)} == {0.05}
    assert "methods.pfedsim.settings.cifar10-0.1" not in table.sources


def test_a_table_without_a_search_is_one_line():
    with pytest.raises(InvalidInput, match="table: fake is not accepted; expected a table with a search"):
        export(results_of(fake_results(seeds=2)))
