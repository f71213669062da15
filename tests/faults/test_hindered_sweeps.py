"""Sweeps whose trials fail, or that lack what they need for a while, lose nothing that was computed."""

from __future__ import annotations

import pytest

from tests.faults.conftest import Outside
from tests.faults.faults import HINDERED, INCLUDED, TOGETHER, install_failing

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", [name for name in HINDERED if name not in INCLUDED])
def test_a_hindered_sweep_loses_nothing_and_ends_with_the_same_bits(name, assert_recovers):
    assert_recovers(HINDERED[name])


def test_a_sweep_that_several_faults_hit_survives_all_of_them(assert_recovers):
    assert_recovers(TOGETHER)


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
            assert checkout.run(*repro) != 0, checkout.output
            assert len([row for row in checkout.rows() if "error" in row]) == 2 * sweeps
            assert checkout.output.count(f"pfl: error: small: {again}\n") == sweeps
            assert f"{again}." in report.read_text()
        (checkout.root / "broken").unlink()
        assert checkout.run(*repro) == 0, checkout.output
        assert "failed" not in report.read_text().partition("## Provenance")[0]
        assert "4 from the ledger" in checkout.output
        before = checkout.output
        assert checkout.run(*repro) == 0, checkout.output
        assert "from the ledger" not in checkout.output.removeprefix(before)  # DVC skips the stage
    finally:
        checkout.stop()


@pytest.mark.usefixtures("whole")
def test_a_sweep_asks_nobody_outside_for_anything(outside: Outside):
    """Telemetry of DVC, Ray and MLflow goes over HTTPS, and where there is a proxy through that."""
    assert not outside.asked
