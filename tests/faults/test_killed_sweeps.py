"""Sweeps whose processes are killed, interrupted or cut off lose nothing that was computed."""

from __future__ import annotations

import pytest

from tests.faults.faults import INCLUDED, KILLED

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", [name for name in KILLED if name not in INCLUDED])
def test_a_killed_sweep_loses_nothing_and_ends_with_the_same_bits(name, assert_recovers):
    assert_recovers(KILLED[name])
