"""What travels in a round (methods' own exceptions are tested beside each)."""

from __future__ import annotations

import dataclasses

import pytest

from pfl.engine.simulation import BYTES_PER_SCALAR
from pfl.run.simulate import simulate
from tests.conftest import CONFIG

WHOLE = ("clusterfl", "ditto", "feddyn", "fedprox", "fedupdate")
WHOLE += ("fesem", "perfedavg", "pfedhn", "pfedme", "pfedsim")


@pytest.mark.parametrize("method", WHOLE)
def test_a_participant_receives_a_model_and_sends_one(method, dataset, partition):
    config = dataclasses.replace(CONFIG, method=method, rounds=2, participation=1.0, bn_stats="mixed")
    (fedavg,) = simulate(dataclasses.replace(config, method="fedavg"), dataset, partition)
    (result,) = simulate(config, dataset, partition)
    assert result.metrics.bytes_down == fedavg.metrics.bytes_down > partition.clients * 2 * BYTES_PER_SCALAR
    assert result.metrics.bytes_up == fedavg.metrics.bytes_up
