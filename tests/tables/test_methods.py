"""The tables by which a baseline is chosen compare every method, with the same effort of tuning."""

from __future__ import annotations

import pytest

from pfl.methods import METHODS
from pipeline.spec.cells import cells
from pipeline.spec.search_space import PINNED_TRIAL, searched
from pipeline.spec.table import load_table
from pipeline.sweep.search import plan_of, planned

LEADERBOARDS = ("leaderboard", "leaderboard-digits")


def test_every_method_has_one_row():
    rows = [row.method for row in load_table("methods-cifar10").methods]
    assert sorted(rows) == sorted(METHODS)


def test_three_learning_rates_are_tried_and_nothing_else():
    for cell in cells("methods-cifar10", load_table("methods-cifar10")):
        assert cell.search.trials == 3
        ranges = {name: parameter.search for name, parameter in searched(cell.config, cell.search).items()}
        assert ranges == {"lr": (0.01, 0.1)}


@pytest.mark.parametrize("table", LEADERBOARDS)
def test_every_synchronous_method_is_on_a_leaderboard(table):
    rows = [row.method for row in load_table(table).methods]
    assert sorted(rows) == [name for name in sorted(METHODS) if METHODS[name].family != "asynchronous"]


@pytest.mark.parametrize("table", LEADERBOARDS)
def test_no_trial_of_a_leaderboard_trains_longer_than_the_pinned_configuration(table):
    longer = {"head_epochs", "extractor_epochs", "supervisor_epochs", "model_epochs", "epochs"}
    for cell in cells(table, load_table(table)):
        names = set(searched(cell.config, cell.search))
        assert not names & (longer | ({"rho"} if cell.config.method == "pfedcs" else set()))


@pytest.mark.parametrize("table", LEADERBOARDS)
def test_the_budget_of_a_leaderboard_takes_pinned_values_and_a_trial_to_the_last_round(table):
    seeds = load_table(table).seeds
    for cell in cells(table, load_table(table)):
        plan = plan_of(cell.config, cell.search, seeds)
        ended = {step.trial for step in planned(plan) if step.until == plan.rounds}
        assert PINNED_TRIAL in ended
        assert len(ended) > 1
        assert plan.budget == len(seeds) * cell.config.rounds
