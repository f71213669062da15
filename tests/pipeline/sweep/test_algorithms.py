"""Search algorithms: the built-in ones, and those of plugins."""

from __future__ import annotations

import itertools
import logging
import math
from dataclasses import replace
from statistics import median

import pytest
from optuna.samplers import BruteForceSampler
from pydantic import ValidationError

from pfl.core.config import Config
from pfl.run.validation import validated
from pipeline.algorithms import ALGORITHMS, Algorithm
from pipeline.spec.search_space import Search
from pipeline.sweep.budget import Outcome, SearchPlan
from pipeline.sweep.search import Proposer, plan_of
from tests.pipeline.sweep.test_search import asked, pinned, selection
from tests.repository import ROOT
from tests.test_docs import blocks

SEARCH = Search(trials=20)


def proposals(algorithm: str, config: Config | None = None, seed: int = 0) -> list[dict]:
    search = SEARCH.model_copy(update={"algorithm": algorithm, "seed": seed})
    return asked(Proposer(config or pinned(), search), 18)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
class TestEveryAlgorithm:
    def test_begins_with_the_pinned_configuration_and_proposes_within_the_ranges(self, algorithm):
        trials = proposals(algorithm)
        assert trials[0] == {"lr": 0.05, "mu": 1.0}
        assert all(0.001 <= trial["lr"] <= 0.3 and 1e-4 <= trial["mu"] <= 3.0 for trial in trials)
        assert len({trial["lr"] for trial in trials}) >= 5

    def test_asked_again_proposes_the_same_and_with_another_seed_something_else(self, algorithm):
        assert proposals(algorithm) == proposals(algorithm) != proposals(algorithm, seed=1)

    def test_searches_parameters_with_choices_and_conditions(self, algorithm):
        trials, again = (proposals(algorithm, pinned("fedasync")) for _ in range(2))
        assert trials == again
        needed = {"constant": set(), "polynomial": {"a"}, "hinge": {"a", "b"}}
        assert all(params.keys() & {"a", "b"} == needed[params["staleness"]] for params in trials)


def test_a_sobol_sequence_does_not_warn_of_conditions_in_every_trial(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("optuna"), "propagate", True)
    search = SEARCH.model_copy(update={"algorithm": "qmc"})
    Proposer(pinned("fedasync", staleness="hinge"), search).ask(12)
    assert caplog.messages == []


def test_a_grid_ends_with_its_last_combination():
    proposer = Proposer(pinned(), Search(trials=40, algorithm="grid"))
    trials = asked(proposer, 60)
    assert len(trials) == 1 + 5 * 5
    pairs = {(trial["lr"], trial["mu"]) for trial in trials[1:]}
    rates, weights = (sorted({pair[place] for pair in pairs}) for place in (0, 1))
    assert pairs == set(itertools.product(rates, weights))
    assert rates == pytest.approx([0.001, 0.00416, 0.01732, 0.07208, 0.3], rel=1e-3)


def test_a_search_whose_algorithm_has_no_more_configurations_ends():
    config = validated(replace(pinned("local"), rounds=20))
    proposer = Proposer(config, Search(trials=30, algorithm="grid"))
    steps, _ = selection(proposer, SearchPlan((20,), (0, 1, 2, 3), trials=30), lambda trial, _: float(trial))
    assert {step.trial for step in steps} == set(range(1 + 5))


@pytest.mark.parametrize("told", [4, 5])
def test_a_grid_does_not_mind_how_many_combinations_are_left_when_the_pinned_configuration_ends(told):
    proposer = Proposer(pinned("local"), Search(trials=30, algorithm="grid"))
    trials = proposer.ask(1 + told)
    for trial in (*trials[1:], 0):
        proposer.tell(trial, 20, Outcome(50.0, None), ended=True)
    assert len([*trials, *proposer.ask(3)]) == 1 + 5


def test_without_halving_all_trials_run_to_the_end():
    search = Search(trials=5, halving=False)
    plan = plan_of(pinned(), search, [0, 1])
    assert plan.rungs == (20,)
    steps, _ = selection(Proposer(pinned(), search), plan, lambda trial, _: float(trial))
    assert [step.until for step in steps] == [20] * len(steps)


@pytest.mark.parametrize("algorithm", sorted(set(ALGORITHMS) - {"cmaes"}))
def test_with_several_objectives_the_same_search_tries_the_same(algorithm):
    search = SEARCH.model_copy(update={"algorithm": algorithm, "objectives": ["accuracy", "megabytes"]})

    def tried() -> list[dict]:
        proposer = Proposer(pinned(), search)
        for _ in range(15):
            for trial in proposer.ask(1):
                lr = proposer.asked[trial]["lr"]
                worst = Outcome(0.0, 1, (math.inf,))
                outcome = worst if lr > 0.2 else Outcome(90 + 10 * math.log10(lr), 1, (100 * lr,))
                proposer.tell(trial, 20, outcome, ended=True)
        return proposer.asked

    assert tried() == tried()
    assert plan_of(pinned(), search, [0, 1]).rungs == (20,)


def test_an_algorithm_for_one_objective_is_refused_for_several():
    with pytest.raises(ValidationError, match="algorithm: cmaes is not accepted; expected an algorithm for"):
        Search(trials=4, algorithm="cmaes", objectives=["accuracy", "decile"])


@pytest.mark.parametrize("objectives", [[], ["megabytes"], ["accuracy", "accuracy"], ["accuracy", "seconds"]])
def test_objectives_are_accuracy_and_then_quantities_that_do_not_depend_on_the_machine(objectives):
    with pytest.raises(ValidationError, match=r"is not accepted; expected (accuracy first|one of decile)"):
        Search(trials=4, objectives=objectives)


def test_an_unknown_algorithm_is_one_line_with_the_known_ones():
    with pytest.raises(ValidationError, match="search algorithm: hyperband is not accepted"):
        Search(trials=4, algorithm="hyperband")


@pytest.mark.parametrize("algorithm", ["tpe", "gp"])
@pytest.mark.parametrize("lr", [0.2, 0.002])
def test_the_first_trials_lie_alternately_anywhere_in_the_space_and_near_the_pinned_configuration(
    algorithm, lr
):
    def away(params: dict) -> float:
        return abs(math.log(params["lr"] / lr))

    nearest = []
    for seed in range(10):
        proposer = Proposer(
            validated(replace(pinned(), lr=lr)),
            SEARCH.model_copy(update={"algorithm": algorithm, "seed": seed}),
        )
        proposer.ask(10)
        spread, near = proposer.asked[1::2], proposer.asked[2::2]
        nearest.append(median(map(away, near)) < median(map(away, spread)))
        parts = sorted(math.log(params["lr"] / 1e-3) / math.log(300) * 5 for params in spread)
        assert [int(part) for part in parts] == [0, 1, 2, 3, 4]
    assert sum(nearest) >= 8


def test_first_trials_near_the_pinned_configuration_keep_about_half_of_its_choices():
    kept = []
    for seed in range(20):
        proposer = Proposer(pinned("fedasync"), SEARCH.model_copy(update={"seed": seed}))
        proposer.ask(10)
        kept += [params["staleness"] == proposer.asked[0]["staleness"] for params in proposer.asked[2::2]]
    assert 0.5 < sum(kept) / len(kept) < 0.85


def test_the_documented_algorithm_of_a_plugin_is_selected_by_its_name(monkeypatch):
    names: dict = {}
    exec(blocks(ROOT / "docs/search.md", "python")[0], names)
    monkeypatch.setitem(ALGORITHMS._added, "univariate", names["Univariate"])
    assert len(proposals("univariate")) == 18
    assert len(proposals("univariate", pinned("fedasync"))) == 18


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_a_sampler_that_has_tried_all_combinations_ends_the_search(monkeypatch):
    class Exhaustive(Algorithm):
        def sampler(self):
            return BruteForceSampler(seed=self.seed)

    monkeypatch.setitem(ALGORITHMS._added, "exhaustive", Exhaustive)
    space = {"head_epochs": [1, 2], "extractor_epochs": [1, 3], "others": "pinned"}
    proposer = Proposer(
        pinned("fedrep", head_epochs=1), Search(trials=9, algorithm="exhaustive", space=space)
    )
    trials = asked(proposer, objective=lambda params: params["head_epochs"])
    assert len(trials) == len(set(map(str, trials))) == 6
