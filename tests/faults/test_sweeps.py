"""Sweeps under `dvc repro` that are killed, cut off and obstructed lose nothing that was computed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.checkout import Checkout
from tests.faults.conftest import Outside
from tests.faults.faults import FAULTS, install_failing
from tests.faults.recovery import file_system, suffer

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", [name for name in FAULTS if name != "everything"])  # "ledger" injects it
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


def test_failed_trials_are_reported_end_dvc_with_an_error_and_are_tried_again(prepared, tmp_path):
    checkout = prepared.copy(tmp_path / "checkout")
    install_failing(checkout)
    checkout.table.write_text(checkout.table.read_text().replace(", search: {trials: 2}", ""))
    checkout.table.write_text(checkout.table.read_text().replace("- fedavg\n", "- fedavg\n- recovers\n"))
    report = checkout.root / "results/small/report/README.md"
    again = "2 of 6 runs failed; the next `dvc repro` retries them"
    repro = ("dvc", "repro", "--keep-going", "train-sweep@small", "report@small")
    (checkout.root / "broken").touch()
    try:
        for sweeps in (1, 2):
            assert checkout.run(*repro) != 0, checkout.said
            assert len([row for row in checkout.rows() if "error" in row]) == 2 * sweeps
            assert checkout.said.count(f"pfl: error: small: {again}\n") == sweeps
            assert f"{again}." in report.read_text()
        (checkout.root / "broken").unlink()
        assert checkout.run(*repro) == 0, checkout.said
        assert "failed" not in report.read_text().partition("## Provenance")[0]
        assert "4 from the ledger" in checkout.said
        before = checkout.said
        assert checkout.run(*repro) == 0, checkout.said
        assert "from the ledger" not in checkout.said.removeprefix(before)  # DVC skips the stage
    finally:
        checkout.stop()


@pytest.mark.usefixtures("whole")
def test_a_sweep_asks_nobody_outside_for_anything(outside: Outside):
    """Telemetry of DVC, Ray and MLflow goes over HTTPS, and where there is a proxy through that."""
    assert not outside.asked
