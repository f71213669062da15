"""The plots of a search, and Pareto fronts of searches with several objectives."""

from __future__ import annotations

from typing import Any

import pytest
from matplotlib.colors import to_rgb

from pipeline.columns import COLUMNS
from pipeline.report import search_fronts, search_plots, search_tables
from pipeline.report.summary import Summary
from tests.pipeline.fake_results import cell_of, fail, fake_results, search_step, summary_of
from tests.pipeline.fake_results import recorded_step as step
from tests.pipeline.running import csv_lines


def test_the_cost_of_a_trial_that_goes_on_is_counted_once():
    steps = [step(0, 5, 50.0, 100), step(1, 5, 60.0, 150), step(2, 5, None, None), step(1, 20, 55.0, 600)]
    assert search_plots.progress([*steps, step(3, 5, 70.0, 50)]) == [(700, 55.0), (750, 55.0)]


def test_accuracies_of_earlier_rounds_and_of_other_seeds_are_not_among_the_best():
    other = step(0, 20, 90.0, 100, seed=1001)
    steps = [step(0, 20, 50.0, 100), step(1, 5, 80.0, 25), step(1, 20, 55.0, 100), other]
    assert search_plots.progress(steps) == [(100, 50.0), (125, 50.0), (200, 55.0), (300, 55.0)]


def test_the_cost_of_a_trial_that_diverged_is_counted_too():
    steps = [step(0, 5, None, 100), step(1, 5, 60.0, 150), step(2, 5, None, 50), step(1, 20, 65.0, 600)]
    assert search_plots.progress(steps) == [(750, 65.0)]


def test_every_search_has_its_cost_and_its_slices_drawn():
    summary = summary_of(fake_results(seeds=2, search=3))
    assert list(search_plots.draw(summary)) == ["search", "slices"]
    assert search_plots.draw(summary) == search_plots.draw(summary)
    assert search_plots.draw(summary_of(fake_results(settings=1, seeds=1))) == {}


def searched_without_local(*settings: str) -> Summary:
    """The results of a table in which FedAvg and pFedSim are searched, FedAvg in these settings."""
    results = fake_results(settings=3, seeds=2, search=3)
    search = results["config"].pop("search")
    for row in results["config"]["methods"][1:]:
        row["search"] = search
    for cell in results["cells"]:
        if cell["row"] == "local":
            cell |= {"selected": None, "searched": [], "selection": None}
    results["cells"] = [
        cell for cell in results["cells"] if cell["row"] != "fedavg" or cell["setting"] in settings
    ]
    return summary_of(results)


def test_rows_without_a_search_have_no_curve_of_its_cost():
    figure = search_plots.cost(searched_without_local("cifar10-0.1"))
    assert [len(axes.lines) for axes in figure.axes] == [2, 1, 1]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["FedAvg", "pFedSim"]


def test_a_setting_has_the_same_marker_for_all_methods_and_in_the_legend():
    summary = searched_without_local("cifar10-0.5", "cifar100-0.1")
    figure = search_plots.slices(summary)
    of_fedavg, of_pfedsim = (
        [(str(marks.get_paths()), tuple(marks.get_facecolor()[0, :3])) for marks in axes.collections]
        for axes in figure.axes[:2]
    )
    assert of_fedavg == of_pfedsim[1:]
    assert of_pfedsim[0] not in of_fedavg
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == list(summary.settings.values())
    shown = [to_rgb(line.get_color()) for line in legend.legend_handles]
    assert shown == [colour for _, colour in of_pfedsim]


def test_the_numbers_of_logarithmic_axes_are_no_formulas():
    drawn = search_plots.draw(summary_of(fake_results(seeds=2, search=3)))["slices"]
    assert ">0.01<" in drawn
    assert "$" not in drawn


def test_a_search_of_which_nothing_ran_is_not_drawn():
    results = fake_results(settings=1, seeds=2, search=2)
    for cell in results["cells"]:
        for trial in cell["searched"]:
            fail(trial, 0)
    assert search_plots.draw(summary_of(results)) == {}


CELL = "cifar10-0.1/local"
TRAFFIC = {0: 40, 1: 50, 2: 20, 3: 60}
ACCURACY = {0: 60.0, 1: 59.0, 2: 50.0, 3: 70.0}
"""By trial; trial 1 is less accurate than trial 0 and sends more."""


def results(objectives: list[str]) -> dict[str, Any]:
    results = fake_results(settings=1, seeds=2, search=4)
    results["config"]["search"] |= {"objectives": objectives}
    cell = cell_of(results, CELL)
    for trial, bytes_up in TRAFFIC.items():
        step = search_step(CELL, trial, 0.01 * (trial + 1), ACCURACY[trial])
        step["records"][0]["metrics"] |= {"bytes_up": bytes_up * 10**6, "bytes_down": 0}
        cell["searched"][trial] = step
    return results


@pytest.fixture(scope="module")
def summary() -> Summary:
    return summary_of(results(["accuracy", "megabytes"]))


def test_the_front_has_every_trial_that_no_other_one_beats_in_all_objectives(summary):
    ((objectives, points),) = search_fronts.fronts(summary).items()
    assert objectives == ("accuracy", "megabytes")
    own = [point for point in points if point.label == "Local"]
    assert [(point.trial, point.values["megabytes"]) for point in own] == [(3, 60.0), (0, 40.0), (2, 20.0)]
    assert own[0].key == cell_of(results(list(objectives)), CELL)["searched"][3]["records"][0]["key"]


def test_a_plot_for_each_objective_beside_the_accuracy(summary):
    assert list(search_fronts.draw(summary)) == ["front-megabytes"]
    assert ">MB in total<" in search_fronts.draw(summary)["front-megabytes"]
    assert list(search_fronts.draw(summary_of(results(["accuracy", "decile", "megabytes"])))) == [
        "front-decile",
        "front-megabytes",
    ]


def test_rows_without_the_objective_are_not_in_its_plot():
    content = results(["accuracy"])
    content["config"]["methods"][0]["search"] = {"trials": 4, "objectives": ["accuracy", "megabytes"]}
    (legend,) = search_fronts.front(summary_of(content), "megabytes").legends
    assert [text.get_text() for text in legend.get_texts()] == ["Local"]


def test_with_the_accuracy_alone_there_is_no_front():
    alone = summary_of(results(["accuracy"]))
    assert (search_fronts.fronts(alone), search_fronts.draw(alone)) == ({}, {})


def test_the_csv_file_has_a_column_for_each_further_objective(summary):
    lines = csv_lines(search_tables.rows(summary))
    own = [float(line["megabytes"]) for line in lines if line["cell"] == CELL]
    assert own == [40.0, 50.0, 20.0, 60.0]


def test_an_objective_with_the_name_of_a_column_of_the_csv_file_has_a_column_of_its_own(monkeypatch):
    monkeypatch.setitem(COLUMNS._added, "seed", COLUMNS["megabytes"])
    (first, *_) = csv_lines(search_tables.rows(summary_of(results(["accuracy", "seed"]))))
    assert float(first["column_seed"]) == TRAFFIC[0]
