"""Numbers that move without a new numerics version fail here: a ledger would serve stale rows."""

from __future__ import annotations

import json

import pytest

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
