"""What a table may say of its search, and what is searched."""

from __future__ import annotations

import math

import pytest

from pfl.core.config import Config
from pfl.core.errors import InvalidInput
from pfl.run.validation import validated
from pipeline.spec.search_space import Search, check_space, searched, with_params
from tests.refusal import refusal


def pinned(method: str = "fedprox", **hyperparameters) -> Config:
    return validated(Config(method=method, hyperparameters=hyperparameters, lr=0.05))


def ranges(config: Config, **space) -> dict[str, tuple]:
    return {
        name: parameter.search for name, parameter in searched(config, Search(trials=9, space=space)).items()
    }


def test_the_learning_rate_and_what_the_method_declares_are_searched():
    assert ranges(pinned(mu=0.3)) == {"lr": (0.001, 0.3), "mu": (1e-4, 3.0)}


def test_ranges_are_widened_to_hold_the_pinned_values():
    assert ranges(pinned(mu=50.0))["mu"] == (1e-4, 50.0)
    assert ranges(pinned(mu=0.3), mu=[0.01, 0.1])["mu"] == (0.01, 0.3)


def test_training_options_are_searched_where_the_table_gives_a_range():
    spaces = ranges(pinned(), momentum=[0, 0.9], epochs=[1, 4], batch_size=[8, 64], weight_decay=[1e-5, 1e-2])
    assert spaces["momentum"] == (0, 0.9)
    assert spaces["epochs"] == (1, 4)
    config = with_params(pinned(), {"momentum": 0.9, "epochs": 4, "mu": 0.2})
    assert (config.momentum, config.epochs, config.hyperparameters) == (0.9, 4, {"mu": 0.2})


def test_what_is_pinned_is_not_searched():
    assert set(ranges(pinned(), lr="pinned")) == {"mu"}


def test_others_pinned_searches_only_what_the_space_names():
    assert ranges(pinned("fedamp", form="heur"), lr=[0.01, 0.1], others="pinned") == {"lr": (0.01, 0.1)}
    assert set(ranges(pinned("fedamp"), others="pinned", kappa=[0.1, 1], lr="pinned")) == {"kappa"}


def test_an_empty_space_is_one_line():
    with pytest.raises(InvalidInput, match=r"search\.space: nothing to search is not accepted; expected a"):
        ranges(pinned("local"), lr="pinned")


def test_what_has_no_effect_under_the_pinned_choice_is_not_searched():
    assert ranges(pinned("fedamp")).keys() == {"lr", "mu", "kappa", "scale"}
    assert ranges(pinned("fedamp", form="heur")).keys() == {"lr", "mu"}
    assert ranges(pinned("perfedavg", variant="hf")).keys() - ranges(pinned("perfedavg")).keys() == {"delta"}


def test_what_no_listed_choice_makes_effective_is_not_searched():
    config = pinned("fedasync", staleness="constant")
    assert not ranges(config, staleness=["constant"]).keys() & {"a", "b"}
    assert ranges(config, staleness=["polynomial"]).keys() & {"a", "b"} == {"a"}
    assert ranges(config).keys() >= {"a", "b"}


@pytest.mark.parametrize(
    ("space", "said"),
    [
        ({"nu": [0, 1]}, "parameter: nu is not accepted; expected one of "),
        ({"mu": ["a", "b"]}, "mu of fedprox: ['a', 'b'] is not accepted; expected [lowest, highest]"),
        ({"mu": [0.1]}, "mu of fedprox: [0.1] is not accepted; expected [lowest, highest], or pinned"),
        ({"mu": [0.1, 1, 2]}, "mu of fedprox: [0.1, 1, 2] is not accepted; expected [lowest, highest]"),
        ({"equation": [10, 12]}, "equation of lga: 12 is not accepted; expected one of 10, 11"),
        ({"equation": ["a"]}, "equation of lga: a is not accepted; expected one of 10, 11"),
        ({"momentum": [0.5, 1.5]}, "momentum: 1.5 is not accepted; expected a number in [0, 0.999]"),
        ({"epochs": [1, 2.5]}, "epochs: 2.5 is not accepted; expected a positive integer"),
        ({"others": [0, 1]}, "others: [0, 1] is not accepted; expected pinned"),
        ({"lr": [0, 0.1]}, "lr: 0 is not accepted; expected a lower end above 0"),
        ({"epochs": [4, 1]}, "epochs: [4, 1] is not accepted; expected the lower end first"),
        ({"mu": [math.nan, 1]}, "mu of fedprox: nan is not accepted; expected a non-negative number"),
        ({"epochs": [1, math.inf]}, "epochs: inf is not accepted; expected a positive integer"),
    ],
)
def test_a_range_that_no_row_can_have_is_one_line(space, said):
    line = refusal(check_space, Search(trials=9, space=space), ["fedprox", "lga", "local"])
    assert line.startswith(said)


@pytest.mark.parametrize(
    ("method", "name", "chosen"), [("lga", "equation", [10, 11]), ("fedsimsup", "supervisor_size", [0.5])]
)
def test_choices_that_are_numbers_can_be_listed(method, name, chosen):
    check_space(Search(trials=9, space={name: chosen}), [method])
    config = pinned(method)
    assert set(ranges(config, **{name: chosen})[name]) == {*chosen, config.hyperparameters[name]}


@pytest.mark.parametrize("methods", [["fedap", "fedprox"], ["fedprox", "fedap"]])
def test_a_range_is_checked_for_every_method_that_has_the_parameter(methods):
    with pytest.raises(InvalidInput, match=r"mu of fedap: 3 is not accepted; expected a number in \[0, 1\]"):
        check_space(Search(trials=9, space={"mu": [0.5, 3]}), methods)
