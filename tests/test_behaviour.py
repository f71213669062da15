"""What names the code in a key: every edit that moves a number gives another name, and no other edit does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pfl.behaviour
import pytest
from pfl.behaviour import Behaviour, agree, behaviour_of, name_of, probe, question_of

from pfl.config import Config
from pfl.engine.method import Method
from pfl.methods import METHODS
from pfl.rng import generator
from pfl.validation import validated
from tests.test_registry import install

ROOT = Path(__file__).parents[1]
DIGITS = (1, 8, 8), 10
NO_NUMBERS = {"warnings"}  # hooks that no number comes from

NAMES = """
import json, sys
from pfl.behaviour import behaviour_of
from pfl.config import Config
from pfl.validation import validated
shown = {"cnn_digits": (1, 8, 8)}
names = {}
for pair in sys.argv[1:]:
    method, model = pair.split("/")
    config = validated(Config(method=method, model=model))
    names[pair] = behaviour_of(config, shown.get(model, (1, 16, 16)), 10).name
print(json.dumps(names))
"""


def config(method: str = "fedavg", **changes: object) -> Config:
    return validated(Config(method=method, **changes))  # type: ignore[arg-type]


def names(pairs: Sequence[str], cache: Path, *path: Path) -> dict[str, str]:
    """The behaviour's name of each METHOD/MODEL, in a process that finds its packages in ``path`` first."""
    done = subprocess.run(
        [sys.executable, "-c", NAMES, *pairs],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), "PFL_CACHE": str(cache)},
        cwd=cache.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def replace(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_an_edit_of_a_network_or_of_a_helper_renames_what_uses_it_and_nothing_else(tmp_path):
    before = {
        f"{method}/{model}": behaviour_of(config(method, model=model), shape, 10).name
        for model, shape in (("cnn_digits", (1, 8, 8)), ("lenet5", (1, 16, 16)))
        for method in ("fedavg", "fesem")
    }
    shutil.copytree(ROOT / "pfl", tmp_path / "pfl")
    replace(tmp_path / "pfl/models/cnn_digits.py", "hidden=(32,)", "hidden=(48,)")
    replace(tmp_path / "pfl/methods/_clusters.py", "* weights\n", "* weights**2\n")
    replace(tmp_path / "pfl/engine/groups.py", '"""Parameter groups', '"""Groups of parameters')
    replace(tmp_path / "pfl/methods/fedavg.py", "class FedAvg", "# a comment\n\n\nclass FedAvg")
    after = names(list(before), tmp_path / "cache", tmp_path)
    assert after["fedavg/lenet5"] == before["fedavg/lenet5"]
    assert {pair for pair in before if after[pair] != before[pair]} == {
        "fedavg/cnn_digits",
        "fesem/cnn_digits",
        "fesem/lenet5",
    }


METHOD = '''
    """Halfway: averages the head only."""

    from dataclasses import dataclass

    from pfl.engine.method import Method


    @dataclass(frozen=True)
    class Halfway(Method):
        paper = "a test"

        def aggregate(self, server):
            from helping import group

            return {group(): server.average()}
'''
NETWORK = '''
    """Shallow: one hidden layer."""


    def shallow(shape, classes):
        from torch import nn

        from pfl.models._network import Network

        channels, height, width = shape
        extractor = nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, 16), nn.ReLU())
        return Network(extractor, nn.Linear(16, classes))
'''


def test_an_edit_of_a_plugin_or_of_what_it_imports_renames_what_uses_it(tmp_path):
    method = install(tmp_path / "method", "pfl.methods", "halfway", METHOD)
    network = install(tmp_path / "network", "pfl.models", "shallow", NETWORK)
    (network / "mine").rename(network / "other")
    for file in network.glob("*/entry_points.txt"):
        replace(file, "mine.", "other.")
    replace(network / "mine-1.0.dist-info/METADATA", "Name: mine", "Name: other")
    (network / "mine-1.0.dist-info").rename(network / "other-1.0.dist-info")
    helper = tmp_path / "helping.py"
    helper.write_text('def group():\n    return "head"\n')
    pairs = ["halfway/cnn_digits", "halfway/shallow", "fedavg/shallow", "fedavg/cnn_digits"]

    def changed() -> set[str]:
        path = (ROOT, method, network, tmp_path)
        now = names(pairs, tmp_path / "cache", *path)
        moved = {pair for pair in pairs if now[pair] != last.get(pair)}
        last.update(now)
        return moved

    last: dict[str, str] = {}
    assert changed() == set(pairs)
    helper.write_text('def group():\n    return "extractor"\n')
    assert changed() == {"halfway/cnn_digits", "halfway/shallow"}
    replace(network / "other/shallow.py", "16", "24")
    replace(method / "mine/halfway.py", "averages the head only", "averages what its helper says")
    assert changed() == {"halfway/shallow", "fedavg/shallow"}


@pytest.mark.parametrize("method", list(METHODS))
def test_a_probe_calls_every_hook_of_a_method(method, monkeypatch):
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
    assert "error" not in probe(config(method), *DIGITS)
    assert called == hooks


@pytest.mark.parametrize(
    ("method", "name", "other"),
    [
        ("fedfomo", "pfl.methods.fedfomo.FedFomo._exploration", lambda *_: 0.0),
        ("fedfomo", "pfl.methods.fedfomo.generator", lambda seed, *words: generator(seed + 1, *words)),
        ("fedgen", "pfl.methods.fedgen.FLOOR", 0.0),
    ],
)
def test_what_defaults_would_hide_is_probed(method, name, other, monkeypatch):
    before = probe(config(method), *DIGITS)
    monkeypatch.setattr(name, other)
    assert not agree(before, probe(config(method), *DIGITS))


def test_trials_that_differ_in_numbers_alone_share_one_behaviour():
    pinned = config("fedprox")
    searched = config("fedprox", hyperparameters={"mu": 0.3}, lr=0.2, rounds=500, batch_size=64)
    assert question_of(searched, *DIGITS) == question_of(pinned, *DIGITS)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": "fedcac", "hyperparameters": {"collab": "none"}}, "collab=none"),
        ({"method": "fedcac", "hyperparameters": {"fling_zero_rule": True}}, "fling_zero_rule=True"),
        ({"method": "feddyn", "hyperparameters": {"clip": 0.0}}, "clip=0"),
        ({"method": "fesem", "hyperparameters": {"mu": 0.1}}, "mu=some"),
        ({"momentum": 0.9}, "momentum=some"),
        ({"validation": 0.2}, "validation=some"),
        ({"lr_schedule": "cosine"}, "lr_schedule=cosine"),
        ({"lr_schedule": "step", "lr_step": 50}, "lr_schedule=step"),
        ({"lr_warmup": 20}, "lr_warmup=some"),
        ({"bn_stats": "local"}, "bn_stats=local"),
        ({"observe": "similarities"}, "observe=similarities"),
    ],
)
def test_choices_and_what_is_switched_off_are_probed_as_they_are(changes, said):
    images = (1, 16, 16), 4
    usual = config(changes.get("method", "fedavg"), model="lenet5_bn")
    changed = config(model="lenet5_bn", **changes)
    assert question_of(changed, *images) == f"{question_of(usual, *images)}, {said}"
    assert probe(changed, *images) != probe(usual, *images)


def test_images_of_0_to_255_are_probed_at_a_rate_at_which_nothing_explodes():
    values = probe(config(input_scale="raw255"), *DIGITS)
    assert values["train loss"] < 100


def test_a_value_that_is_new_makes_no_behaviour_another():
    values = probe(config(), *DIGITS)
    assert agree(values, {**values, "accuracy of tomorrow": 50.0})
    assert not agree({**values, "accuracy of tomorrow": 50.0}, values)


def test_rounding_agrees_and_an_edit_does_not():
    values = probe(config(), *DIGITS)
    assert agree(values, {**values, "train loss": values["train loss"] + 1e-9})
    assert not agree(values, {**values, "train loss": values["train loss"] + 1e-5})
    assert not agree(values, {**values, "headline": "adapted"})


def test_a_default_that_moves_is_another_behaviour():
    # What is at its default is no part of a trial's key.
    values = probe(config("fedprox"), *DIGITS)
    assert not agree(values, {**values, "default mu": 0.5})


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, of a process that knows no answer."""
    monkeypatch.setenv("PFL_CACHE", str(tmp_path))
    monkeypatch.setattr(pfl.behaviour, "_answers", {})
    return tmp_path


@pytest.mark.usefixtures("cache")
def test_a_known_behaviour_gives_its_name_to_what_agrees_with_it(monkeypatch):
    question, values = question_of(config("local"), *DIGITS), probe(config("local"), *DIGITS)
    near = {**values, "train loss": values["train loss"] + 1e-9}
    monkeypatch.setattr(pfl.behaviour, "known", lambda: {question: {"local-known": near}})
    assert behaviour_of(config("local"), *DIGITS).name == "local-known"


def test_new_behaviours_are_added_to_those_that_are_known(monkeypatch, tmp_path):
    monkeypatch.setattr(pfl.behaviour, "KNOWN", tmp_path / "behaviours.json")
    pfl.behaviour.known.cache_clear()
    first = Behaviour("fedavg, a network", "fedavg-1", {"train loss": 1.0})
    second = Behaviour("fedavg, a network", "fedavg-2", {"train loss": 2.0})
    assert pfl.behaviour.add_known([first]) == 1
    assert pfl.behaviour.add_known([first, second]) == 1
    assert pfl.behaviour.known() == {first.question: {"fedavg-1": first.values, "fedavg-2": second.values}}
    pfl.behaviour.known.cache_clear()


@pytest.mark.parametrize("content", ["", "[]", '{"names": {"x": 1}', '{"names": {}, "codes": {"a": "b"}}'])
def test_a_damaged_cache_entry_is_probed_again(content, cache, monkeypatch):
    expected = behaviour_of(config("local"), *DIGITS)
    (entry,) = (cache / "behaviours").iterdir()
    entry.write_text(content)
    monkeypatch.setattr(pfl.behaviour, "_answers", {})
    assert behaviour_of(config("local"), *DIGITS) == expected
    assert json.loads(entry.read_text())["names"]


@pytest.mark.usefixtures("cache")
def test_the_same_code_is_probed_once(monkeypatch):
    first = behaviour_of(config("local"), *DIGITS)
    monkeypatch.setattr(pfl.behaviour, "_answers", {})
    monkeypatch.setattr(pfl.behaviour, "probe", lambda *_: pytest.fail("probed again"))
    assert behaviour_of(config("local"), *DIGITS) == first


def test_a_method_that_fails_has_a_behaviour_too(monkeypatch):
    def fail(*_: object) -> None:
        raise RuntimeError("a mistake")

    monkeypatch.setattr(METHODS["fedavg"], "aggregate", fail)
    values = probe(config(), *DIGITS)
    assert values["error"] == "RuntimeError"
    assert name_of("fedavg, cnn_digits", values).startswith("fedavg-")
