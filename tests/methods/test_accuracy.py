"""On handwritten digits with two classes per client, personalised methods beat FedAvg."""

from typing import Any

import pytest

from pfl.core.config import Config
from pfl.data.dataset import load
from pfl.data.partition import make_partition
from tests.conftest import simulate

pytestmark = pytest.mark.slow  # 20 rounds of 20 clients for each method


def accuracy(method: str, hyperparameters: dict[str, Any]) -> float:
    data = load("digits")
    split = make_partition("pathological:2", data, 20)
    config = Config(
        method=method,
        hyperparameters=hyperparameters,
        participation=0.5,
        rounds=20,
        epochs=2,
        batch_size=16,
        lr=0.1,
        eval_every=20,
    )
    return simulate(config, data, split, (0,))[0].metrics.to_json()["accuracy"]["pooled"]["last"]


@pytest.fixture(scope="module")
def fedavg() -> float:
    return accuracy("fedavg", {})


@pytest.mark.parametrize(
    ("method", "hyperparameters"),
    [
        ("local", {}),
        ("fedper", {}),
        ("fedrep", {"head_epochs": 1, "extractor_epochs": 1}),
        ("fedbabu", {}),
        ("fedrod", {}),
        ("fedproto", {}),
        ("fedfomo", {}),
        ("fedamp", {}),
        ("pfedme", {"lam": 5.0}),
        ("pfedsim", {}),
        ("fedsimsup", {"supervisor_epochs": 1, "model_epochs": 1}),
        ("spfl", {"head_stage": "local"}),
        ("pfedcs", {}),
        ("fedcac", {}),
        ("apfl", {}),
        ("lgfedavg", {}),
        ("fedala", {}),
        ("fedas", {}),
        ("fedphp", {}),
        ("knnper", {}),
    ],
)
def test_a_personalised_method_beats_fedavg(method, hyperparameters, fedavg):
    assert accuracy(method, hyperparameters) > fedavg + 1
