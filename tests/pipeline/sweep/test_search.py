"""The search in a cell."""

from __future__ import annotations

from statistics import median

from pfl.config import Config
from pfl.validation import validated
from pipeline.sweep.search import WORST, Study, configured, space


def pinned(method: str = "fedprox", **hyperparameters) -> Config:
    return validated(Config(method=method, hyperparameters=hyperparameters, lr=0.05))


def asked(study: Study, objective=lambda params: params["lr"]) -> list[dict]:
    while not study.complete:
        study.tell([objective(params) for params in study.ask()])
    return study.asked


def test_the_pinned_configuration_is_tried_first():
    assert Study(pinned(mu=0.3), trials=9, batch=3, seed=0).ask()[0] == {"lr": 0.05, "mu": 0.3}


def test_the_same_study_asked_again_tries_the_same():
    first, again = (asked(Study(pinned(), trials=9, batch=3, seed=0)) for _ in range(2))
    assert first == again
    assert asked(Study(pinned(), trials=9, batch=3, seed=1)) != first


def test_after_a_third_of_the_trials_the_sampler_follows_what_it_was_told():
    up = asked(Study(pinned("local"), 18, 3, 0), lambda params: params["lr"])
    down = asked(Study(pinned("local"), 18, 3, 0), lambda params: -params["lr"])
    assert up[:6] == down[:6]
    assert median(params["lr"] for params in up[6:]) > 5 * median(params["lr"] for params in down[6:])


def test_the_last_batch_is_as_small_as_the_budget_says():
    study = Study(pinned(), trials=4, batch=3, seed=0)
    sizes = []
    while not study.complete:
        batch = study.ask()
        sizes.append(len(batch))
        study.tell([1.0] * len(batch))
    assert sizes == [3, 1]


def test_everything_tried_is_a_valid_configuration_of_the_method():
    for method in ("local", "fedrep", "pfedsim", "fedsimsup"):
        config = pinned(method)
        for params in asked(Study(config, 9, 3, 0)):
            tried = configured(config, params)
            assert tried.lr == params["lr"]
            assert tried.hyperparameters.keys() == config.hyperparameters.keys()


def test_ranges_are_widened_to_hold_the_pinned_values():
    found = space(pinned(mu=50.0))
    assert found["mu"].high == 50.0


def test_a_pinned_value_that_a_logarithmic_scale_cannot_hold_is_tried_first_all_the_same():
    study = Study(pinned(mu=0), trials=3, batch=3, seed=0)
    batch = study.ask()
    assert batch[0]["mu"] == 0
    assert all(params["mu"] > 0 for params in batch[1:])
    study.tell([3.0, 2.0, 1.0])
    assert study.best() == 0


def test_the_best_of_equals_is_the_earliest_and_a_failed_trial_is_never_it():
    study = Study(pinned(), trials=4, batch=4, seed=0)
    study.ask()
    study.tell([None, 80.0, 80.0, WORST])
    assert study.best() == 1


def test_a_search_in_which_everything_failed_selects_nothing():
    study = Study(pinned(), trials=2, batch=2, seed=0)
    study.ask()
    study.tell([None, None])
    assert study.best() is None


def test_a_table_narrows_a_range_but_never_below_the_pinned_value():
    found = space(pinned(mu=0.3), {"mu": [0.01, 0.1]})["mu"]
    assert (found.low, found.high) == (0.01, 0.3)


def test_what_has_no_effect_under_the_pinned_choice_is_not_searched():
    def names(method, **hyperparameters):
        return set(space(pinned(method, **hyperparameters))) - {"lr"}

    assert names("fedamp") == {"mu", "kappa", "scale"}
    assert names("fedamp", form="heur") == {"mu"}
    assert names("perfedavg", variant="hf") - names("perfedavg", variant="fo") == {"delta"}


def test_a_condition_on_what_is_searched_too_is_looked_at_in_every_trial():
    trials = asked(Study(pinned("clusterfl", eps1=0.7), 30, 3, 0))
    assert {params["thresholds"] for params in trials} == {"absolute", "relative"}
    for params in trials:
        assert ("eps1" in params) == ("eps2" in params) == (params["thresholds"] == "relative")
    absolute = next(params for params in trials if params["thresholds"] == "absolute")
    assert configured(pinned("clusterfl", eps1=0.7), absolute).hyperparameters["eps1"] == 0.7


def test_a_conditional_search_asked_again_tries_the_same():
    first, again = (asked(Study(pinned("fedasync"), 18, 3, 0)) for _ in range(2))
    assert first == again
    needed = {"constant": set(), "polynomial": {"a"}, "hinge": {"a", "b"}}
    assert all(params.keys() & {"a", "b"} == needed[params["staleness"]] for params in first)
