"""The printed table: scores, ranks, failures."""

from __future__ import annotations

import statistics

from pipeline.report.summary import Entry
from pipeline.store.scores import Score
from tests.pipeline.fake_results import (
    cell_of,
    diverge,
    fail,
    fake_results,
    ledger_rows,
    reach,
    results_by_row,
    summary_of,
)


def entry_of(results: dict, cell: str, configuration: str = "pinned") -> Entry:
    setting, _, row = cell.partition("/")
    summary = summary_of(results)
    lines = summary.pinned if configuration == "pinned" else summary.selected
    return next(line.entries[setting] for line in lines if line.row == row)


def select(cell: dict, accuracy: float) -> None:
    """Let the search of ``cell`` have selected a configuration that reaches this accuracy with every seed."""
    rows = ledger_rows(cell["cell"], [accuracy] * 3, lr=0.1)
    cell["selected"] = {"number": 1, "params": {"lr": 0.1}, "records": rows}


def test_an_average_is_that_of_a_row_whose_cells_all_have_a_score():
    results = fake_results(methods=3, settings=2)
    results["config"]["average"] = {"label": "Mean"}
    for setting, value in {"cifar10-0.1": 60.0, "cifar10-0.5": 40.0}.items():
        reach(cell_of(results, f"{setting}/fedavg"), value, value, value)
    fail(cell_of(results, "cifar10-0.5/local")["pinned"], 2)
    summary = summary_of(results)
    assert list(summary.columns.values())[-1] == "Mean"
    assert entry_of(results, "average/fedavg").score == Score(50.0, None, 3)
    local = entry_of(results, "average/local")
    assert (local.status, local.cause, local.rank) == ("partial", "seed 2: out of memory", None)
    assert local.score == Score(statistics.fmean(entry.mean for entry in local.averaged), None, 2)
    results["cells"].remove(cell_of(results, "cifar10-0.1/local"))
    local = entry_of(results, "average/local")
    assert (local.status, local.score) == ("not run", None)


def test_an_average_over_a_column_of_single_clients_has_no_rank():
    results = fake_results(methods=3, settings=2)
    results["config"]["average"] = {"label": "Mean"}
    assert entry_of(results, "average/pfedsim").rank == 1
    results["config"]["settings"]["cifar10-0.5"]["evaluation"] = {"clients": [0, 0]}
    average = entry_of(results, "average/pfedsim")
    assert average.complete
    assert average.rank is None


def test_an_average_has_as_many_seeds_as_the_column_with_the_fewest():
    results = fake_results(methods=3, settings=2)
    results["config"]["average"] = {"label": "Mean"}
    reach(cell_of(results, "cifar10-0.5/fedavg"), 40.0)  # of the ledger, columns may have different seeds
    score = entry_of(results, "average/fedavg").score
    assert score is not None
    assert score.seeds == 1


def test_a_time_has_no_rank():
    results = fake_results(methods=3, settings=1)
    results["config"]["evaluation"]["metric"] = "seconds_per_sample"
    entries = [line.entries["cifar10-0.1"] for line in summary_of(results).pinned]
    assert all(entry.score for entry in entries)
    assert {entry.rank for entry in entries} == {None}


def test_only_equal_numbers_share_a_rank():
    results = results_by_row(local=(60.0,), fedavg=(60.0,), pfedsim=(59.999,))
    ranks = [line.entries["cifar10-0.1"].rank for line in summary_of(results).pinned]
    assert ranks == [1, 1, 2]


def test_a_cell_with_a_missing_seed_is_partial_and_takes_no_part_in_the_ranking():
    results = fake_results(methods=3, settings=1)
    reach(cell_of(results, "cifar10-0.1/fedavg"), 99.0, 99.0, 99.0)
    diverge(cell_of(results, "cifar10-0.1/fedavg")["pinned"], seed=2)
    entry = entry_of(results, "cifar10-0.1/fedavg")
    assert (entry.status, entry.cause, entry.rank) == ("partial", "seed 2: diverged in round 3", None)
    assert entry.score == Score(99.0, 0.0, 2)


def test_each_configuration_has_the_cause_of_its_own_failure():
    results = fake_results(search=3)
    cell = cell_of(results, "cifar10-0.1/fedavg")
    select(cell, 50.0)
    diverge(cell["pinned"], seed=0)
    fail(cell["selected"], 2)
    assert entry_of(results, "cifar10-0.1/fedavg").cause == "seed 0: diverged in round 3"
    assert entry_of(results, "cifar10-0.1/fedavg", "selected").cause == "seed 2: out of memory"


def test_an_average_over_a_diverged_cell_has_diverged_and_has_no_simulations_of_its_own():
    results = fake_results(methods=3, settings=2, seeds=1)
    results["config"]["average"] = {"label": "Mean"}
    diverge(cell_of(results, "cifar10-0.1/fedavg")["pinned"])
    entry = entry_of(results, "average/fedavg")
    assert (entry.status, entry.cause) == ("diverged", "seed 0: diverged in round 3")
    assert (entry.score, entry.simulated) == (None, ())


def test_a_part_of_the_seeds_of_rows_that_are_not_searched_is_summed_up():
    results = fake_results(methods=3, settings=1)
    results["cells"] = [cell_of(results, "cifar10-0.1/fedavg")]
    results["config"]["methods"][0]["search"] = {"trials": 3}
    results["subset"] = {"settings": [], "methods": ["fedavg"], "seeds": [0]}
    assert summary_of(results).table.seeds == [0]


def test_a_failed_search_trial_does_not_mark_a_complete_configuration():
    results = fake_results(search=3)
    diverge(cell_of(results, "cifar10-0.1/fedavg")["searched"][1])
    assert entry_of(results, "cifar10-0.1/fedavg").cause == ""
    assert entry_of(results, "cifar10-0.1/fedavg", "selected").status == "done"


def test_a_selected_configuration_is_a_line_even_where_it_is_worse():
    results = fake_results(search=3)
    select(cell_of(results, "cifar10-0.1/fedavg"), 1.0)
    pinned = entry_of(results, "cifar10-0.1/fedavg").score
    selected = entry_of(results, "cifar10-0.1/fedavg", "selected").score
    assert pinned is not None
    assert selected is not None
    assert selected.mean == 1.0 < pinned.mean


def test_the_parameters_have_the_training_options_that_the_search_varies():
    results = fake_results(search=3)
    cell = cell_of(results, "cifar10-0.1/pfedsim")
    cell["selected"] |= {"number": 1, "params": {"epochs": 5, "momentum": 0.9}}
    options = {"lr": 0.05, "epochs": 5, "momentum": 0.9}
    records = (record | {"config": record["config"] | options} for record in cell["pinned"]["records"])
    cell["selected"]["records"] = [record | {"key": record["key"][::-1]} for record in records]
    pinned, selected = (
        entry_of(results, "cifar10-0.1/pfedsim", configuration) for configuration in ("pinned", "selected")
    )
    assert pinned.parameters == {"rho": 0.5, "lr": 0.05, "momentum": 0.0, "epochs": 2}
    assert selected.parameters == {"rho": 0.5, "lr": 0.05, "momentum": 0.9, "epochs": 5}
    assert entry_of(results, "cifar10-0.1/fedavg").parameters == {"lr": 0.05}


def test_rows_and_columns_keep_the_order_of_the_table():
    summary = summary_of(fake_results(methods=12, settings=9, seeds=1))
    assert list(summary.columns)[:2] == ["cifar10-0.1", "cifar10-0.5"]
    assert [line.label for line in summary.pinned][-2:] == ["f-FedAP", "pFedSim"]
