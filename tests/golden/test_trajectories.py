"""A number that moves fails here. If it was to: ``make golden``, and ``make behaviours``."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pfl.config import Config
from pfl.methods import METHODS
from pfl.validation import validated
from tests.golden.trajectory import FILE, trajectory

GOLDEN = json.loads(FILE.read_text())


def test_every_method_has_a_golden_trajectory():
    assert set(GOLDEN) == set(METHODS)


@pytest.mark.parametrize("method", list(METHODS))
def test_no_number_moves(method):
    golden, now = GOLDEN[method], trajectory(method)
    for ours, theirs in zip(now["rounds"], golden["rounds"], strict=True):
        for name, value in theirs.items():
            assert ours[name] == pytest.approx(value, abs=1e-9), name


@pytest.mark.parametrize("method", list(METHODS))
def test_no_default_moves(method):
    golden, now = (
        _flat(values) for values in (GOLDEN[method]["defaults"], validated(Config(method=method)).to_dict())
    )
    assert {name: now.get(name) for name in golden} == golden


def _flat(config: dict[str, Any]) -> dict[str, Any]:
    return {**config, **config["hyperparameters"], "hyperparameters": None}
