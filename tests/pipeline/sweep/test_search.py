"""The search in a cell."""

from __future__ import annotations

from statistics import median
from types import SimpleNamespace

import pytest

from pfl.core.config import Config
from pfl.methods import METHODS
from pfl.run.validation import validated
from pipeline.spec.search_space import Search
from pipeline.store.results import Comparison
from pipeline.sweep import outputs
from pipeline.sweep.budget import Outcome, SearchPlan
from pipeline.sweep.search import Study, on_validation, plan_of, planned, search, selected

TEN = Search(trials=10)


def pinned(method: str = "fedprox", **hyperparameters) -> Config:
    return validated(Config(method=method, hyperparameters=hyperparameters, lr=0.05, rounds=20))


def asked(study: Study, trials: int = 9, objective=lambda params: params["lr"]) -> list[dict]:
    """The parameters of so many trials, in rounds of three, each trained to the end."""
    for _ in range(trials // 3):
        for trial in study.ask(3):
            study.tell(trial, 20, objective(study.asked[trial]), ended=True)
    return study.asked


def selection(study: Study, plan: SearchPlan, value, rate=lambda _: 1) -> tuple[list, object]:
    """All steps of a search and what it selects.

    Args:
        value: the accuracy of a trial with a seed.
        rate: the samples that a trial trains on in a round.
    """
    steps, trained = search(study, plan), []
    try:
        batch = next(steps)
        while True:
            trained += batch
            batch = steps.send(
                [Outcome(value(step.trial, step.seed), rate(step.trial) * step.until) for step in batch]
            )
    except StopIteration as end:
        return trained, end.value


def test_the_pinned_configuration_is_tried_first():
    study = Study(pinned(mu=0.3), TEN)
    study.ask(3)
    assert study.asked[0] == {"lr": 0.05, "mu": 0.3}
    assert study.config(0) == pinned(mu=0.3)


def test_the_same_study_asked_again_tries_the_same():
    first, again = (asked(Study(pinned(), TEN)) for _ in range(2))
    assert first == again
    assert asked(Study(pinned(), Search(trials=10, seed=1))) != first


def test_after_the_random_trials_the_sampler_follows_what_it_was_told():
    up = asked(Study(pinned("local"), TEN), 18, lambda params: params["lr"])
    down = asked(Study(pinned("local"), TEN), 18, lambda params: -params["lr"])
    assert up[:6] == down[:6]
    assert median(params["lr"] for params in up[6:]) > 5 * median(params["lr"] for params in down[6:])


def test_a_trial_that_stopped_early_counts_less_than_one_that_went_on():
    def told(stopped: float) -> list[dict]:
        study = Study(pinned("local"), TEN)
        for _ in range(6):
            for trial in study.ask(3):
                early = study.asked[trial]["lr"] > stopped
                study.tell(trial, 5 if early else 20, 90.0 if early else 50.0, ended=True)
        return study.asked[6:]

    assert max(params["lr"] for params in told(0.02)) < 0.1


def test_everything_tried_is_a_valid_configuration_of_the_method():
    for method in ("local", "fedrep", "pfedsim", "fedsimsup"):
        study = Study(pinned(method), TEN)
        asked(study)
        for trial, params in enumerate(study.asked):
            tried = study.config(trial)
            assert tried.lr == params["lr"]
            assert tried.hyperparameters.keys() == pinned(method).hyperparameters.keys()


def test_a_pinned_value_that_a_logarithmic_scale_cannot_hold_is_tried_first_all_the_same():
    study = Study(pinned(mu=0), TEN)
    study.ask(3)
    assert study.asked[0]["mu"] == 0
    assert all(params["mu"] > 0 for params in study.asked[1:])
    for trial in range(3):
        study.tell(trial, 20, 50.0, ended=True)


def test_a_condition_on_what_is_searched_too_is_looked_at_in_every_trial():
    study = Study(pinned("clusterfl", eps1=0.7), TEN)
    trials = asked(study, 30)
    assert {params["thresholds"] for params in trials} == {"absolute", "relative"}
    for params in trials:
        assert ("eps1" in params) == ("eps2" in params) == (params["thresholds"] == "relative")
    absolute = next(n for n, params in enumerate(trials) if params["thresholds"] == "absolute")
    assert study.config(absolute).hyperparameters["eps1"] == 0.7


def test_a_conditional_search_asked_again_tries_the_same():
    first, again = (asked(Study(pinned("fedasync"), TEN), 18) for _ in range(2))
    assert first == again
    needed = {"constant": set(), "polynomial": {"a"}, "hinge": {"a", "b"}}
    assert all(params.keys() & {"a", "b"} == needed[params["staleness"]] for params in first)


@pytest.mark.parametrize("method", ["pfedsim", "fedap"])
def test_a_method_with_a_warm_up_is_compared_after_it(method):
    assert plan_of(pinned(method, rho=0.2), Search(budget=4), [0, 1]).rungs == (10, 20)
    study = Study(pinned(method, rho=0.5), TEN)
    study.ask(6)
    for trial in range(6):
        rho = study.config(trial).hyperparameters["rho"]
        assert study.warm_up(trial) == METHODS[method](rho=rho).warm_up(20)


def test_finalists_and_the_pinned_configuration_are_compared_on_all_seeds():
    plan = SearchPlan((5, 10, 20), (3, 4, 5), budget=320)
    steps, winner = selection(Study(pinned(), TEN), plan, lambda trial, seed: 50.0 + trial + seed)
    compared = [step for step in steps if step.seed != 3]
    assert {step.trial for step in compared} == {0, *(one.trial for one in winner.comparisons)}
    assert len(compared) == 3 * 2
    assert all((step.after, step.until) == (0, 20) for step in compared)


@pytest.mark.parametrize("budget", [140, 160, 200, 360])
def test_a_search_of_trials_that_train_more_in_a_round_costs_no_more(budget):
    def rate(trial: int) -> int:
        return 1 + trial % 3

    plan = SearchPlan((5, 10, 20), (0, 1), budget)
    steps, _ = selection(Study(pinned(), TEN), plan, lambda trial, _: float(trial), rate)
    assert sum(rate(step.trial) * (step.until - step.after) for step in steps) <= budget
    assert len(steps) < len(planned(plan))


def test_the_pinned_configuration_stays_unless_the_gain_exceeds_its_standard_error():
    noisy = selected({0: [50.0, 60.0, 70.0], 4: [59.0, 60.0, 66.0]})
    assert noisy.trial == 0
    assert noisy.comparisons[0].gain == pytest.approx(5 / 3)
    assert noisy.comparisons[0].error == pytest.approx(3.844, abs=1e-3)
    assert selected({0: [50.0, 60.0, 70.0], 4: [51.0, 61.5, 72.0]}).trial == 4
    assert selected({0: [50.0, 60.0], 4: [50.0, 60.0]}).trial == 0


def test_of_convincing_finalists_the_one_with_the_largest_gain_is_selected():
    winner = selected({0: [50.0, 60.0], 4: [51.0, 61.0], 7: [55.0, 66.0], 8: [90.0, None]})
    assert winner.trial == 7
    assert winner.comparisons == (Comparison(4, 1.0, 0.0), Comparison(7, 5.5, 0.5))


def test_with_one_seed_any_gain_selects_as_its_error_is_not_known():
    assert selected({0: [50.0], 4: [50.5], 7: [50.2]}).comparisons == (
        Comparison(4, 0.5, None),
        Comparison(7, pytest.approx(0.2), None),
    )
    assert selected({0: [50.0], 4: [50.5], 7: [50.2]}).trial == 4
    assert selected({0: [50.0], 4: [50.0]}).trial == 0


def test_a_search_with_one_seed_ends_with_its_last_rung():
    plan = SearchPlan((5, 10, 20), (0,), trials=3)
    steps, winner = selection(Study(pinned(), TEN), plan, lambda trial, _: 50.0 + trial)
    assert {step.seed for step in steps} == {0}
    assert winner.trial == max(step.trial for step in steps if step.until == 20)


def test_a_search_in_which_everything_failed_stays_with_the_pinned_configuration():
    steps, winner = selection(Study(pinned(), TEN), SearchPlan((5, 20), (0, 1), trials=4), lambda *_: None)
    assert (winner.trial, winner.comparisons) == (0, ())
    assert {step.until for step in steps} == {5}


def test_a_plan_says_beforehand_what_it_comes_to():
    plan = SearchPlan((5, 10, 20), (0, 1, 2), budget=320)
    steps, _ = selection(Study(pinned(), TEN), plan, lambda trial, _: float(trial))
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
    monkeypatch.setattr(outputs, "STUDIES", tmp_path / "optuna.db")
    (tmp_path / "optuna.db").write_text("no database")
    study = Study(pinned(), TEN)
    scheduler = SimpleNamespace(cells=[SimpleNamespace(study=study, cell=SimpleNamespace(id="dir/fedprox"))])
    outputs._save_studies("small", scheduler)
    assert "optuna.db could not be written (DatabaseError" in capsys.readouterr().err
