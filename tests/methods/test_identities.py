"""Settings under which one method must equal another (methods.md section 6), in float64 to 1e-9."""

from __future__ import annotations

import dataclasses

import pytest

from pfl.config import Config
from pfl.engine.simulation import simulate

CONFIG = Config(
    model="lenet5_bn",
    participation=0.5,
    rounds=3,
    epochs=2,
    batch_size=8,
    lr=0.1,
    eval_every=1,
    dtype="float64",
)


def losses(dataset, partition, method, hyperparameters=None, **changes):
    config = dataclasses.replace(CONFIG, method=method, hyperparameters=hyperparameters or {}, **changes)
    rounds = simulate(config, dataset, partition, (0,))[0].metrics["rounds"]
    return [(entry["post_aggregation"]["loss"], entry["train_loss"]) for entry in rounds]


def assert_equal(first, second):
    for ours, theirs in zip(first, second, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-9)


def test_fedprox_with_mu_0_is_fedavg(dataset, partition):
    assert_equal(losses(dataset, partition, "fedprox", {"mu": 0.0}), losses(dataset, partition, "fedavg"))


def test_pfedsim_with_rho_1_is_fedavg(dataset, partition):
    assert_equal(losses(dataset, partition, "pfedsim", {"rho": 1.0}), losses(dataset, partition, "fedavg"))


def test_fedprox_with_mu_1_is_not_fedavg(dataset, partition):
    near, free = losses(dataset, partition, "fedprox"), losses(dataset, partition, "fedavg")
    assert near[-1] != pytest.approx(free[-1], abs=1e-3)


def test_fedper_starts_like_fedavg_and_leaves_it(dataset, partition):
    personal, shared = losses(dataset, partition, "fedper"), losses(dataset, partition, "fedavg")
    assert personal[0][1] == pytest.approx(shared[0][1], abs=1e-9)
    assert personal[-1] != pytest.approx(shared[-1], abs=1e-6)
