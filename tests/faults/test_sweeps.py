"""Sweeps under `dvc repro` that are killed, cut off and obstructed lose nothing that was computed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.checkout import Checkout
from tests.faults.conftest import Outside
from tests.faults.faults import FAULTS
from tests.faults.recovery import file_system, suffer

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", FAULTS)
def test_a_sweep_loses_nothing_and_ends_with_the_same_bits(
    name: str, prepared: Checkout, whole: Checkout, tmp_path: Path
):
    fault = FAULTS[name]
    try:
        with file_system(tmp_path / "checkout", fault.megabytes):
            outcome = suffer(fault, whole, prepared.copy(tmp_path / "checkout"))
    except PermissionError as error:
        pytest.skip(str(error))
    assert not outcome.lost, outcome.said
    assert (outcome.repeated, outcome.survived) == (fault.repeated, fault.survived)
    for line in fault.says:
        assert line in outcome.said
    assert "Traceback" not in outcome.said


@pytest.mark.usefixtures("whole")
def test_a_sweep_asks_nobody_outside_for_anything(outside: Outside):
    """Telemetry of DVC, Ray and MLflow goes over HTTPS, and where there is a proxy through that."""
    assert not outside.asked
