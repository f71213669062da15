"""The search in a cell."""

from __future__ import annotations

from statistics import median
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import t

from benchmarks.search.selection import SIMULATED, simulated
from pfl.core.config import Config
from pfl.methods import METHODS
from pfl.run.validation import validated
from pipeline.spec.search_space import Search
from pipeline.store.results import Comparison, Selection
from pipeline.sweep import outputs
from pipeline.sweep.budget import Outcome, SearchPlan
from pipeline.sweep.halving import driven
from pipeline.sweep.search import Proposer, on_validation, plan_of, planned, search, selected

TEN = Search(trials=10)


def pinned(method: str = "fedprox", **hyperparameters) -> Config:
    return validated(Config(method=method, hyperparameters=hyperparameters, lr=0.05, rounds=20))


def asked(proposer: Proposer, trials: int = 9, objective=lambda params: params["lr"]) -> list[dict]:
    """The parameters of ``trials`` trials, asked for in threes, each trained to the end."""
    for _ in range(trials // 3):
        for trial in proposer.ask(3):
            proposer.tell(trial, 20, Outcome(objective(proposer.asked[trial]), None), ended=True)
    return proposer.asked


def selection(proposer: Proposer, plan: SearchPlan, value, rate=lambda _: 1) -> tuple[list, object]:
    """All steps of a search and what it selects.

    Args:
        value: the accuracy of a trial with a seed.
        rate: the samples that a trial trains on in a round.
    """
    batches, decision = driven(
        search(proposer, plan),
        lambda step: Outcome(value(step.trial, step.seed), rate(step.trial) * step.until),
    )
    return [step for batch in batches for step in batch], decision


def test_the_pinned_configuration_is_tried_first():
    proposer = Proposer(pinned(mu=0.3), TEN)
    proposer.ask(3)
    assert proposer.asked[0] == {"lr": 0.05, "mu": 0.3}
    assert proposer.config(0) == pinned(mu=0.3)


def test_after_the_first_trials_the_sampler_follows_what_it_was_told():
    up = asked(Proposer(pinned("local"), TEN), 24, lambda params: params["lr"])
    down = asked(Proposer(pinned("local"), TEN), 24, lambda params: -params["lr"])
    assert up[:2] == down[:2]
    assert up[1:10:2] == down[1:10:2]
    assert median(params["lr"] for params in up[12:]) > 5 * median(params["lr"] for params in down[12:])


def test_a_trial_that_stopped_early_counts_less_than_one_that_went_on():
    def proposals(stopped: float) -> list[dict]:
        proposer = Proposer(pinned("local"), TEN)
        for _ in range(6):
            for trial in proposer.ask(3):
                early = proposer.asked[trial]["lr"] > stopped
                outcome = Outcome(90.0 if early else 50.0, None)
                proposer.tell(trial, 5 if early else 20, outcome, ended=True)
        return proposer.asked[10:]

    assert max(params["lr"] for params in proposals(0.02)) < 0.1


def test_everything_tried_is_a_valid_configuration_of_the_method():
    for method in ("local", "fedrep", "pfedsim", "fedsimsup"):
        proposer = Proposer(pinned(method), TEN)
        asked(proposer)
        for trial, params in enumerate(proposer.asked):
            tried = proposer.config(trial)
            assert tried.lr == params["lr"]
            assert tried.hyperparameters.keys() == pinned(method).hyperparameters.keys()


def test_a_pinned_value_that_a_logarithmic_scale_cannot_hold_is_tried_first_all_the_same():
    proposer = Proposer(pinned(mu=0), TEN)
    proposer.ask(3)
    assert proposer.asked[0]["mu"] == 0
    assert all(params["mu"] > 0 for params in proposer.asked[1:])
    for trial in range(3):
        proposer.tell(trial, 20, Outcome(50.0, None), ended=True)


def test_a_condition_on_what_is_searched_too_is_looked_at_in_every_trial():
    proposer = Proposer(pinned("clusterfl", eps1=0.7), TEN)
    trials = asked(proposer, 30)
    assert {params["thresholds"] for params in trials} == {"absolute", "relative"}
    for params in trials:
        assert ("eps1" in params) == ("eps2" in params) == (params["thresholds"] == "relative")
    absolute = next(n for n, params in enumerate(trials) if params["thresholds"] == "absolute")
    assert proposer.config(absolute).hyperparameters["eps1"] == 0.7


@pytest.mark.parametrize("method", ["pfedsim", "fedap"])
def test_a_method_with_a_warm_up_is_compared_after_it(method):
    assert plan_of(pinned(method, rho=0.2), Search(budget=4), [0, 1]).rungs == (10, 20)
    proposer = Proposer(pinned(method, rho=0.5), TEN)
    proposer.ask(6)
    for trial in range(6):
        rho = proposer.config(trial).hyperparameters["rho"]
        assert proposer.warm_up(trial) == METHODS[method](rho=rho).warm_up(20)


def test_the_best_trial_and_the_pinned_one_are_compared_on_seeds_that_nothing_else_has_used():
    plan = plan_of(pinned(), Search(budget=4), [0, 1, 2])
    steps, winner = selection(Proposer(pinned(), TEN), plan, lambda trial, seed: 50.0 + trial + seed % 3)
    tried = [step for step in steps if step.seed == plan.seeds[0]]
    compared = [step for step in steps if step not in tried]
    best = max(step.trial for step in tried if step.until == 20)
    assert [(step.trial, step.seed) for step in compared] == [
        (trial, seed) for trial in (0, best) for seed in plan.seeds[1:]
    ]
    assert all((step.after, step.until) == (0, 20) for step in compared)
    assert len({*plan.seeds, 0, 1, 2}) == 4 + 3
    assert winner == Selection(best, (Comparison(best, float(best), 0.0),))


def test_there_is_no_comparison_if_no_trial_is_better_than_the_pinned_configuration():
    plan = plan_of(pinned(), Search(budget=4), [0, 1, 2])
    steps, winner = selection(Proposer(pinned(), TEN), plan, lambda trial, _: 50.0 - trial)
    assert {step.seed for step in steps} == {plan.seeds[0]}
    assert winner == Selection(0, ())


@pytest.mark.parametrize("budget", [140, 200, 360])
def test_a_search_of_trials_that_train_more_in_a_round_costs_no_more(budget):
    def rate(trial: int) -> int:
        return 1 + trial % 3

    plan = SearchPlan((5, 10, 20), (0, 1, 2, 3), budget)
    steps, _ = selection(Proposer(pinned(), TEN), plan, lambda trial, _: float(trial), rate)
    assert sum(rate(step.trial) * (step.until - step.after) for step in steps if not step.seed) <= budget
    assert len(steps) < len(planned(plan))


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_the_pinned_configuration_stays_unless_the_gain_exceeds_the_bound_of_a_t_test(seeds):
    pins = 50.0 + 10 * np.arange(seeds)
    differences = np.linspace(-1, 1, seeds)
    error = differences.std(ddof=1) / seeds**0.5
    bound = t.ppf(0.95, seeds - 1) * error
    above, below = (pins + differences + bound * share for share in (1.001, 0.999))
    gain = pytest.approx(1.001 * bound)
    assert selected(4, pins, above) == Selection(4, (Comparison(4, gain, pytest.approx(error)),))
    assert selected(4, pins, below).trial == 0
    assert selected(4, pins, pins).trial == 0


def test_a_search_selects_nothing_if_a_run_of_the_comparison_failed():
    assert selected(4, [50.0, 60.0, 70.0], [90.0, None, 95.0]) == Selection(0, ())


@pytest.mark.parametrize("trials", [2, 5, 9])
@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_of_equal_configurations_another_than_the_pinned_one_is_selected_in_at_most_5_percent(seeds, trials):
    share = simulated(gain=0, noise=1.0, trials=trials, seeds=seeds)
    assert share <= 0.05 + 2 * (0.05 * 0.95 / SIMULATED) ** 0.5


def test_with_three_seeds_a_gain_of_five_points_is_found_in_90_percent_and_in_75_with_more_noise():
    assert simulated(5, noise=1.0, trials=4, seeds=3) > 0.9
    assert simulated(5, noise=1.5, trials=4, seeds=3) > 0.75


def test_a_search_in_which_everything_failed_stays_with_the_pinned_configuration():
    steps, winner = selection(Proposer(pinned(), TEN), SearchPlan((5, 20), (0, 1), trials=4), lambda *_: None)
    assert winner == Selection(0, ())
    assert {step.until for step in steps} == {5}


def test_a_plan_says_beforehand_what_it_comes_to():
    plan = SearchPlan((5, 10, 20), (0, 1, 2, 3), budget=320)
    steps, _ = selection(Proposer(pinned(), TEN), plan, lambda trial, _: float(trial))
    assert [(s.after, s.until) for s in planned(plan)] == [(s.after, s.until) for s in steps]


@pytest.mark.parametrize(("images", "batch_size"), [(90, 32), (64, 32), (96, 32), (160, 16), (30, 10)])
def test_validation_takes_as_many_steps_as_the_final_training_and_no_ragged_one(images, batch_size):
    config = on_validation(validated(Config(batch_size=batch_size)), 0.2)
    left = images - int(0.2 * images)
    assert config.validation == 0.2
    assert -(-left // config.batch_size) == -(-images // batch_size)
    ragged, final = left % config.batch_size, images % batch_size
    assert not ragged or ragged >= 0.6 * (final or batch_size)


def test_a_damaged_database_of_studies_costs_a_line_and_no_result(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(outputs, "SEARCHES", tmp_path / "optuna.db")
    (tmp_path / "optuna.db").write_text("no database")
    proposer = Proposer(pinned(), TEN)
    scheduler = SimpleNamespace(
        cells=[SimpleNamespace(proposer=proposer, cell=SimpleNamespace(id="dir/fedprox"))]
    )
    outputs._save_searches("small", scheduler)
    assert "optuna.db could not be written (DatabaseError" in capsys.readouterr().err
