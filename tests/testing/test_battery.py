"""The battery agrees with what is recorded, and an edit that moves a number is seen."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from pfl.core.config import Config
from pfl.core.hyper import Hyperparameter
from pfl.engine import evaluation
from pfl.engine.method import Method
from pfl.engine.metrics import Accuracy
from pfl.engine.stacked import StackedBackend
from pfl.kernels import conv_block
from pfl.methods import METHODS
from pfl.testing.battery import WAYS, answer, concerned, differences, run, subjects
from pfl.testing.cases import Case, away, cases, of_method
from tests.conftest import SAMPLE

CASES = {case.name: case for case in cases()}
NO_NUMBERS = {"warnings"}  # hooks that no number comes from


def sampled() -> list[Any]:
    """Every case: two of each method in `SAMPLE` and those of small networks at once, all others in the slow
    suite."""
    fast = {f"{method}, {name}" for method in SAMPLE for name in ("defaults", "options")}
    fast |= {"cnn_digits", "lenet5", "step", "validation", "seeds"}
    return [
        pytest.param(case, id=name, marks=[] if name in fast else pytest.mark.slow)
        for name, case in CASES.items()
    ]


# ---- the recorded results ------------------------------------------------------------------------------


@pytest.mark.parametrize("case", sampled())
def test_the_code_computes_what_is_recorded(case, recorded):
    ours = answer(case, recorded[case.key])
    assert not ours.moved, "\n".join(map(str, ours.moved))
    assert not ours.disagreeing, "\n".join(map(str, ours.disagreeing))


def test_every_case_is_recorded_and_nothing_else(recorded):
    assert {case.key for case in CASES.values()} == set(recorded)


def test_no_two_cases_have_one_name():
    assert len(CASES) == len(cases())


# ---- what it covers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", list(METHODS))
def test_every_hook_of_a_method_is_called(method, monkeypatch):
    cls = METHODS[method]
    hooks = {
        name
        for base in cls.__mro__[: cls.__mro__.index(Method)]
        for name, member in vars(base).items()
        if callable(member) and name in vars(Method) and not name.startswith("__")
    } - NO_NUMBERS
    called = set()
    for name in hooks:
        original = getattr(cls, name)

        def recorded(*args, _name=name, _original=original, **kwargs):
            called.add(_name)
            return _original(*args, **kwargs)

        monkeypatch.setattr(cls, name, recorded)
    for case in of_method(method):
        if called == hooks:
            break
        run(case, "loop")
    assert called == hooks


def test_a_plugin_s_method_is_run_with_every_option_that_the_engine_s_cases_have(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(METHODS, "plugin", lambda name: name == "fedprox")
        theirs = [case for case in cases() if case.subject == "method fedprox"]
    tried = {(name, str(value)) for case in theirs for name, value in case.options.items()}
    ours = [case for case in CASES.values() if case.subject is None and "device" not in case.ways]
    assert tried >= {
        (name, str(value))
        for case in ours
        for name, value in case.options.items()
        if name not in ("method", "hyperparameters")
    }
    assert {case.data for case in theirs} >= {case.data for case in ours if case.method == "fedavg"}
    assert {case.seeds for case in theirs if case.divided} == {(1, 2)}
    (defaults,) = [case for case in theirs if case.defaults and "hyperparameters" not in case.options]
    now = answer(replace(defaults, options={**defaults.options, "rounds": 1}), None).values
    assert now["default lr"]
    assert json.loads(json.dumps(now)) == now  # or it would differ from itself as recorded


@pytest.mark.parametrize("method", list(METHODS))
def test_every_hyperparameter_is_run_away_from_its_default(method):
    defaults = {
        name: METHODS[method].__dataclass_fields__[name].default for name in METHODS[method].declarations()
    }
    moved = {
        name
        for case in of_method(method)
        for name, value in case.options["hyperparameters"].items()
        if value != defaults[name]
    }
    assert moved == set(defaults)


def test_every_option_of_the_configuration_has_another_value_than_its_default():
    usual = Config()
    ways = {
        option
        for case in CASES.values()
        for option, value in case.options.items()
        if value != getattr(usual, option)
    }
    assert ways | {"precision"} == set(vars(usual))  # a way of its own
    assert {way for case in CASES.values() for way in case.ways} == set(WAYS)


@pytest.mark.parametrize(
    ("declared", "default", "values"),
    [
        (Hyperparameter("", low=0.0), 1.0, (0.6, 1.7)),
        (Hyperparameter("", low=0.0, high=1.0), 0.9, (0.54, 0.54)),
        (Hyperparameter("", low=0.0), 0.0, (0.1, 0.3)),
        (Hyperparameter("", low=1), 1, (2, 2)),
        (Hyperparameter("", low=1), 20, (10, 21)),
        (Hyperparameter("", low=1, probe=2), 20, (2, 3)),
    ],
)
def test_a_number_away_from_its_default_is_accepted(declared, default, values):
    assert away(declared, default) == pytest.approx(values)
    for value in values:
        declared.check("number", value, default)


# ---- what it sees --------------------------------------------------------------------------------------


def mean_over_clients(patch: pytest.MonkeyPatch) -> None:
    original = evaluation.averages_of

    def averages(**sums: Any) -> Accuracy:
        score = original(**sums)
        return replace(score, pooled=score.client_mean)

    patch.setattr(evaluation, "averages_of", averages)


def float32_kernels(patch: pytest.MonkeyPatch) -> None:
    original = conv_block._ConvBlock.apply

    def apply(x: torch.Tensor, *rest: Any) -> torch.Tensor:
        return original(x, *rest) * (1.001 if x.dtype == torch.float32 else 1.0)

    patch.setattr(conv_block._ConvBlock, "apply", apply)


def stacked_alone(patch: pytest.MonkeyPatch) -> None:
    original = StackedBackend.train

    def train(self: StackedBackend, task: Any) -> Any:
        trained = original(self, task)
        return replace(trained, losses=trained.losses * (1 + 1e-6))

    patch.setattr(StackedBackend, "train", train)


EDITS = {
    mean_over_clients: "fedavg, defaults",
    float32_kernels: "lenet5",
    stacked_alone: "fedavg, defaults",
}
"""Edits that move a number, and a case that sees it: by its records, by a lower precision, by another backend
(`benchmarks.mutants` has many more).
"""


@pytest.mark.parametrize(
    ("edit", "name"), [pytest.param(*pair, id=pair[0].__name__) for pair in EDITS.items()]
)
def test_an_edit_that_moves_a_number_is_seen(edit, name, monkeypatch):
    before = answer(CASES[name], None)
    assert not before.disagreeing
    with monkeypatch.context() as patch:
        edit(patch)
        after = answer(CASES[name], before.values)
    assert after.moved or after.disagreeing


def test_rounding_is_not_seen_and_a_changed_digit_is():
    case, values = CASES["step"], {"train loss": [1.0, 2.0], "headline": "post_local", "best": [50.0, 3]}
    assert not differences(case, values, {**values, "train loss": [1.0, 2.0 + 1e-8]}, "loop")
    (moved,) = differences(case, values, {**values, "train loss": [1.0, 2.000001]}, "loop")
    assert str(moved) == "train loss (loop): 2.0 -> 2.000001"
    (moved,) = differences(case, values, {**values, "train loss": [1.0 + 1e-8, 2.1]}, "loop")
    assert str(moved) == "train loss (loop): 2.0 -> 2.1"
    (moved,) = differences(case, values, {**values, "train loss": [1.0]}, "loop")
    assert str(moved) == "train loss (loop): 2 -> 1 values"
    for other in ({"headline": "adapted"}, {"best": [50.0, 4]}, {"bytes": 3}):
        assert differences(case, values, {**values, **other}, "loop")
    assert differences(case, values, {name: values[name] for name in ("headline", "best")}, "loop")


def test_in_lower_precision_losses_are_compared_more_coarsely():
    case, values = CASES["lenet5"], {"train loss": [1.0], "post_local pooled": [50.0]}
    near = {"train loss": [1.000004], "post_local pooled": [75.0]}
    assert not differences(case, values, near, "float32")
    assert differences(case, values, {**near, "train loss": [1.0001]}, "float32")


def test_a_new_hyperparameter_moves_nothing_at_its_default():
    case = CASES["fedprox, defaults"]
    before = answer(case, None).values
    older = replace(CASES["fedprox, below"], options={**case.options, "hyperparameters": {}}, data=case.data)
    newer = replace(older, options={**case.options, "hyperparameters": {"mu": 0.6}})
    recorded = {name: value for name, value in before.items() if not name.startswith("default ")}
    result = answer(newer, recorded)
    assert not result.moved
    assert result.new
    assert result.values["asked"] == {"mu": 0.6}
    assert answer(newer, {**recorded, "train loss": [1.0, 2.0, 3.0]}).moved
    assert not differences(case, recorded, before, "loop")
    assert differences(case, {**recorded, "default mu": 2.0}, before, "loop")


def test_a_removed_hyperparameter_moves_only_what_it_changed():
    case, values = CASES["fedprox, defaults"], {"default mu": 1.0, "train loss": [1.0]}
    recorded = {**values, "default removed": "its default"}
    assert not differences(case, recorded, values, "loop")
    assert differences(case, recorded, {**values, "train loss": [1.1]}, "loop")
    assert differences(case, recorded, {"error": "InvalidInput"}, "loop")


def test_a_case_that_raises_says_so():
    case = Case("broken", None, {"model": "cnn_digits", "batch_size": 0})
    assert answer(case, None).values["error"].startswith("InvalidInput: ")


# ---- which cases an edit concerns ----------------------------------------------------------------------


@pytest.mark.parametrize("component", ["engine", "kernels"])
def test_an_edit_of_the_engine_concerns_all(component):
    assert concerned([component], list(CASES.values())) == list(CASES.values())


def test_an_edit_of_a_method_concerns_its_own_cases():
    chosen = concerned(["method fedprox"], list(CASES.values()))
    assert {case.method for case in chosen} == {"fedprox"}
    assert CASES["trials in lockstep"] in chosen


def test_an_edit_of_a_network_concerns_its_own_cases():
    assert concerned(["network lenet5"], list(CASES.values())) == [CASES["lenet5"]]


@pytest.mark.parametrize(
    ("name", "unknown", "moved"),
    [
        ("fedprox, above", ["method fedprox"], ["method fedprox"]),
        ("fedprox, above", ["engine"], ["method fedprox"]),
        ("step", ["method fedavg"], ["method fedavg"]),
        ("lenet5", ["kernels"], ["network lenet5"]),
        ("lenet5", ["network lenet5"], ["network lenet5"]),
        ("step", ["engine"], [f"method {name}" for name in METHODS]),
        ("step", ["engine", "method fedavg"], [f"method {name}" for name in METHODS]),
        ("step", ["kernels", "network cnn_digits"], [f"method {name}" for name in METHODS]),
        ("fedprox, above", ["engine", "network cnn_digits"], ["method fedprox"]),
        ("lenet5", ["engine", "method fedavg"], ["network lenet5"]),
    ],
)
def test_what_has_moved_where_a_case_has(name, unknown, moved):
    assert subjects(CASES[name], unknown) == moved
