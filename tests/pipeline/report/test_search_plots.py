"""The plots of a search."""

from __future__ import annotations

from pipeline.report import search_plots
from pipeline.report.summary import Summary
from tests.pipeline.fake_results import fail, fake_results, summary_of
from tests.pipeline.fake_results import recorded_step as step


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


def test_a_setting_has_the_same_marker_for_all_methods():
    figure = search_plots.slices(searched_without_local("cifar10-0.5", "cifar100-0.1"))
    of_fedavg, of_pfedsim = (
        [marks.get_paths()[0].vertices.tolist() for marks in axes.collections] for axes in figure.axes[:2]
    )
    assert of_fedavg == of_pfedsim[1:]
    assert of_pfedsim[0] not in of_fedavg


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
