"""What a report says of a search."""

from __future__ import annotations

import dataclasses

import pytest

from pfl.core.hyper import Hyperparameter
from pipeline.report import search_tables
from pipeline.report.summary import Summary
from tests.pipeline.fake_results import cell_of, fake_results, search_step, summary_of
from tests.pipeline.fake_results import recorded_step as step
from tests.pipeline.running import csv_lines

LR = Hyperparameter("learning rate", low=0.0, search=(0.001, 0.3), log=True)


@pytest.fixture(scope="module")
def summary() -> Summary:
    return summary_of(fake_results(seeds=2, search=3))


def notes_of(results: dict) -> tuple[str, ...]:
    """The notes on the search of Local."""
    return next(
        search.notes for search in search_tables.searches(summary_of(results)) if search.label == "Local"
    )


def test_a_cell_says_what_was_selected_and_by_how_much(summary):
    searched = search_tables.searches(summary)
    assert len(searched) == len(summary.results.cells)
    for search in searched:
        assert search.trials == 3
        assert search.gain == ("" if search.pins else "+1.50 ± 0.50")
        assert not search.pins or search.validation[0] == search.validation[1]


def test_a_gain_with_one_seed_has_no_standard_error():
    searched = search_tables.searches(summary_of(fake_results(seeds=1, search=3)))
    assert {search.gain for search in searched if not search.pins} == {"+1.50"}


def test_every_trial_is_a_line_of_the_csv_file(summary):
    lines = csv_lines(search_tables.rows(summary))
    assert len(lines) == sum(len(cell.search) for cell in summary.results.cells)
    assert lines[0].keys() >= {"cell", "trial", "seed", "round", "accuracy", "samples", "parameters"}


def test_a_search_whose_best_trial_sits_at_an_end_says_which_range_to_widen():
    results = fake_results(settings=1, seeds=2, search=3)
    cell = cell_of(results, "cifar10-0.1/local")
    for trial, lr in enumerate((0.05, 0.2999, 0.01)):
        cell["searched"][trial] = search_step(cell["cell"], trial, lr, 50.0 + trial % 2)
    assert notes_of(results) == ("widen lr: the best trial (0.3) is at its upper end",)
    cell["searched"][1] = search_step(cell["cell"], 1, 0.2999, 10.0)
    assert notes_of(results) == ()


def test_a_large_number_of_samples_at_the_end_of_a_range_is_written_out():
    results = fake_results(settings=1, seeds=2, search=3)
    results["config"]["search"]["space"] = {"batch_size": [16, 1024]}
    cell = cell_of(results, "cifar10-0.1/local")
    for trial, size in enumerate((64, 1024, 32)):
        params = {"batch_size": size}
        cell["searched"][trial] = search_step(cell["cell"], trial, 0.1, 50.0 + trial % 2, params)
    assert notes_of(results) == ("widen batch_size: the best trial (1024) is at its upper end",)


def test_with_enough_trials_the_importance_comes_first():
    results = fake_results(settings=1, seeds=2, search=12)
    assert notes_of(results)[0] == "importance: lr 1.00"


@pytest.mark.parametrize(
    ("value", "end"), [(0.29, "upper"), (0.00101, "lower"), (0.02, ""), (0.3, "upper"), (0.25, "upper")]
)
def test_a_value_at_the_end_of_its_range_is_told_on_the_scale_of_the_search(value, end):
    assert search_tables.edge(LR, value) == end


def test_an_end_that_is_the_end_of_the_domain_cannot_be_widened():
    share = Hyperparameter("share", low=0.0, high=1.0, search=(0.0, 0.5))
    assert (search_tables.edge(share, 0.0), search_tables.edge(share, 0.5)) == ("", "upper")


def test_an_end_next_to_a_value_that_stands_for_something_else_cannot_be_widened_to_it():
    epochs = Hyperparameter("epochs of the head; 0 means those of the rest", low=0, search=(1, 10))
    assert (search_tables.edge(epochs, 1), search_tables.edge(epochs, 10)) == ("", "upper")
    plain = Hyperparameter("epochs of the head", low=0, search=(1, 10))
    assert search_tables.edge(plain, 1) == "lower"


def test_cells_that_kept_the_pinned_configuration_are_one_line():
    results = fake_results(settings=2, seeds=2, search=3)
    searched = search_tables.searches(summary_of(results))
    line = search_tables.kept([dataclasses.replace(search, pins=True, gain="") for search in searched])
    assert line.startswith(f"{len(searched)} of {len(searched)} cells kept the pinned configuration: ")
    assert "\n" not in line
    assert search_tables.kept([dataclasses.replace(search, pins=False) for search in searched]) == ""


def test_importance_names_what_moves_the_accuracy_and_needs_ten_trials():
    values = [0.001 * 1.8**place for place in range(10)]
    steps = [
        step(place, 5, 50 + 40 * place / 10, 1, lr=lr, mu=0.1 + 0.8 * (place * 7 % 10) / 10)
        for place, lr in enumerate(values)
    ]
    space = {"lr": LR, "mu": Hyperparameter("weight", low=0.0, search=(0.0, 1.0))}
    importances = search_tables.importance(steps, space, "fedprox")
    assert importances["lr"] > importances["mu"]
    assert search_tables.importance(steps[:9], space, "fedprox") == {}


def test_a_validation_accuracy_is_that_of_the_comparison_and_not_of_the_seed_that_chose_the_trial():
    steps = [step(1, 20, value, 10, seed) for seed, value in ((7, 90.0), (8, 80.0), (9, 82.0))]
    assert search_tables._validation(steps, 1) == 81.0
    assert search_tables._validation(steps[:1], 1) == 90.0
    assert search_tables._validation(steps, 2) is None


def test_a_search_that_moves_the_moment_of_evaluation_says_so():
    results = fake_results(settings=1, seeds=2, search=3)
    results["config"]["methods"][0] |= {"method": "perfedavg"}
    assert any("adapt_epochs is searched: part of a gain" in note for note in notes_of(results))
    results["config"]["evaluation"] |= {"moment": "post_aggregation"}
    assert not any("adapt_epochs" in note for note in notes_of(results))
    results["config"]["evaluation"] |= {"moment": "headline"}
    results["config"]["search"] |= {"space": {"adapt_epochs": "pinned"}}
    assert not any("adapt_epochs" in note for note in notes_of(results))
