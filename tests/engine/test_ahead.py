"""A GPU gets the work of several rounds at once, and the numbers are those of one round after another.

The conformance tests check the numbers of every method.
"""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from unittest.mock import patch

import pytest

from pfl.core.config import Execution
from pfl.engine import checkpoint
from pfl.run.simulate import simulate_configs
from pfl.testing.emulated import DEVICE, emulated
from tests.conftest import CONFIG, sampled

SIX_ROUNDS = dataclasses.replace(CONFIG, method="pfedsim", rounds=6, epochs=1, eval_every=6)
ON_DEVICE = Execution(device=str(DEVICE), backend="stacked")


def run(configs, dataset, partition, execution, on_round=None, seeds=(0, 1)):
    results = simulate_configs(configs, dataset, partition, seeds, execution, on_round)
    return [each.metrics.to_json() for own in results for each in own]


def round_by_round(configs, dataset, partition, **options):
    with emulated(), patch("pfl.engine.simulation.MOST_KEPT", -1):
        return run(configs, dataset, partition, ON_DEVICE, **options)


def waits_by_round(method, dataset, partition) -> list[int]:
    """How often the host waited for the device in each round before the last, which ends with an evaluation.

    Without the first round either, in which a method may look at what never changes.
    """
    waited = []
    with emulated() as device:
        config = dataclasses.replace(SIX_ROUNDS, method=method)
        run([config], dataset, partition, ON_DEVICE, lambda *_: waited.append(sum(device.waits.values())))
    return [after - before for before, after in pairwise(waited[:-1])]


@pytest.mark.parametrize(
    "method", ["pfedsim", "spfl", *sampled(["fedavg", "fedper", "fedrep", "local", "pfedme", "scaffold"])]
)
def test_rounds_follow_each_other_without_waiting_for_the_device(method, dataset, partition):
    assert waits_by_round(method, dataset, partition) == [0, 0, 0, 0]


def test_after_every_round_of_large_models_the_host_waits(dataset, partition, monkeypatch):
    monkeypatch.setattr("pfl.engine.simulation.MOST_KEPT", 1000)
    assert min(waits_by_round("pfedsim", dataset, partition)) > 0


def test_a_run_that_diverges_on_the_way_ends_in_that_round_and_the_others_go_on(dataset, partition):
    configs = [dataclasses.replace(SIX_ROUNDS, method="fedavg", lr=lr) for lr in (0.1, 100.0)]
    expected = round_by_round(configs, dataset, partition)
    with emulated():
        assert str(run(configs, dataset, partition, ON_DEVICE)) == str(expected)  # NaN does not equal NaN
    assert [metrics.get("diverged_at") for metrics in expected] == [None, None, 3, 4]


def test_a_checkpoint_is_written_when_it_is_due(dataset, partition, checkpointed, monkeypatch):
    written = []
    monkeypatch.setattr(checkpoint, "save", lambda _, state: written.append(state["runs"][0]["round"]))
    execution = dataclasses.replace(checkpointed, device=ON_DEVICE.device, backend=ON_DEVICE.backend)
    with emulated():
        run([dataclasses.replace(SIX_ROUNDS, rounds=5, eval_every=5)], dataset, partition, execution)
    assert written == [2, 4, 5]
