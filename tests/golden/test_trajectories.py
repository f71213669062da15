"""Numbers that move without a new numerics version fail here: a ledger would serve stale rows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pfl.config import Config
from pfl.methods import METHODS
from tests.golden.trajectory import FILE, trajectory

GOLDEN = json.loads(FILE.read_text())


def test_every_method_has_a_golden_trajectory():
    assert set(GOLDEN) == set(METHODS)


@pytest.mark.parametrize("method", list(METHODS))
def test_no_number_moves_without_a_new_version(method):
    golden, now = GOLDEN[method], trajectory(method)
    assert (now["engine"], now["method"]) == (golden["engine"], golden["method"]), (
        "a new numerics version: write the trajectories anew with python -m tests.golden.trajectory"
    )
    for ours, theirs in zip(now["rounds"], golden["rounds"], strict=True):
        for name, value in theirs.items():
            assert ours[name] == pytest.approx(value, abs=1e-9), name


@pytest.mark.parametrize("method", list(METHODS))
def test_no_default_moves_without_a_new_version(method):
    # What is at its default is no part of a trial's key.
    golden, now = (
        _flat(values) for values in (GOLDEN[method]["defaults"], Config(method=method).validated().to_dict())
    )
    assert {name: now.get(name) for name in golden} == golden


def _flat(config: dict[str, Any]) -> dict[str, Any]:
    return {**config, **config["hyperparameters"], "hyperparameters": None}
