"""What must also hold on a GPU: ``pytest -m gpu``."""

from __future__ import annotations

import dataclasses

import pytest

from pfl.config import Execution
from pfl.engine.simulation import simulate
from pfl.methods import METHODS
from tests.conftest import CONFIG, interrupt

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("method", list(METHODS))
def test_the_gpu_agrees_with_the_cpu_in_both_backends(method, dataset, partition):
    config = dataclasses.replace(CONFIG, method=method)
    expected = simulate(config, dataset, partition, (0,), Execution(device="cpu", backend="loop"))[0].metrics
    for backend in ("loop", "stacked"):
        execution = Execution(device="cuda", backend=backend)
        found = simulate(config, dataset, partition, (0,), execution)[0].metrics
        for ours, theirs in zip(found["rounds"], expected["rounds"], strict=True):
            assert ours["post_aggregation"] == pytest.approx(theirs["post_aggregation"], abs=1e-9)


def test_resume_is_bit_identical_on_the_gpu(dataset, partition, checkpointed):
    config = dataclasses.replace(CONFIG, method="pfedsim", dtype="float32")
    whole = simulate(config, dataset, partition, (0, 1), Execution(device="cuda"))
    execution = dataclasses.replace(checkpointed, device="cuda")

    interrupt(3, config, dataset, partition, (0, 1), execution)
    resumed = simulate(config, dataset, partition, (0, 1), execution)
    assert [run.metrics for run in resumed] == [run.metrics for run in whole]


def test_a_trial_learns_on_the_gpu(dataset, partition):
    config = dataclasses.replace(CONFIG, method="fedavg", dtype="float32", rounds=20)
    losses = [entry["train_loss"] for entry in simulate(config, dataset, partition)[0].metrics["rounds"]]
    assert losses[-1] < losses[0] / 2
