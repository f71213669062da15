"""What is measured after every round of a simulation, and what a simulation measures of itself."""

from __future__ import annotations

import time
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch

from pfl.core.config import Config
from pfl.core.errors import InvalidInput
from pfl.data.dataset import load
from pfl.data.partition import make_partition
from pfl.methods.fedfomo import FedFomo
from tests.conftest import simulate

CONFIG = Config(method="fedavg", model="cnn_digits", rounds=4, epochs=1, participation=0.5, eval_every=1)


def movement(server, _net):
    """How far the first tensor of the head moved in the round."""
    moved = server.uploads["head.bias"] - server.received["head.bias"]
    return {"round": server.round, "moved": moved.abs().sum().item()}


def run(measure=None, config=CONFIG, **options):
    data = load("digits")
    (result,) = simulate(config, data, make_partition("dirichlet:1.0", data, 4), measure=measure, **options)
    return result


def test_a_measurement_sees_every_round_and_moves_nothing():
    measured = run(movement)
    assert [measurement["round"] for measurement in measured.measurements] == [1, 2, 3, 4]
    assert all(measurement["moved"] > 0 for measurement in measured.measurements)
    assert measured.metrics.to_json() == run().metrics.to_json()


def test_nothing_is_kept_of_rounds_without_an_answer():
    last = run(lambda server, _net: server.round if server.round == server.rounds else None)
    assert last.measurements == [4]


def test_measurements_survive_an_interruption(checkpointed):
    def stop(round, *_):
        if round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(movement, execution=checkpointed, on_round=stop)
    resumed = run(movement, execution=checkpointed)
    assert resumed.measurements == run(movement).measurements


def test_a_measured_tensor_keeps_the_value_of_its_round():
    def variate(server, _net):
        return {"variate": server.state["variate"]["head.bias"], "array": server.store["head.bias"].numpy()}

    def sums(server, _net):
        return {name: float(value.sum()) for name, value in variate(server, None).items()}

    config = replace(CONFIG, method="scaffold")
    kept = run(variate, config).measurements
    assert [{name: float(value.sum()) for name, value in each.items()} for each in kept] == run(
        sums, config
    ).measurements


@pytest.mark.parametrize(
    "value", [np.float32(0.5), np.arange(3.0), torch.arange(3.0), {"names": (np.array(["a"]), np.int64(2))}]
)
def test_a_simulation_that_measured_numbers_of_numpy_continues(value, checkpointed):
    def measure(_server, _net):
        return value

    run(measure, replace(CONFIG, rounds=2), execution=checkpointed)
    continued = run(measure, execution=checkpointed)
    assert str(continued.measurements) == str(run(measure).measurements)


def test_a_measurement_that_no_checkpoint_can_store_is_one_clear_line(checkpointed):
    with pytest.raises(InvalidInput, match=r"^measure: a value of type Fraction is not accepted; expected"):
        run(lambda *_: Fraction(1), execution=checkpointed)
    assert run(lambda *_: Fraction(1)).measurements == [Fraction(1)] * 4


def test_a_configuration_may_ask_how_alike_the_clients_are():
    config = replace(CONFIG, method="local", participation=1.0, observe="similarities")
    similarities = run(config=config).metrics.similarities
    assert set(similarities) == {"data", "mdb", "ldb", "cs"}  # without batch norm no "wdb"
    for matrix in similarities.values():
        assert torch.tensor(matrix).shape == (4, 4)
    assert [similarities["cs"][client][client] for client in range(4)] == pytest.approx([1.0] * 4)
    assert run().metrics.similarities is None


EVALUATION = 1e6


def test_train_seconds_are_those_of_all_that_clients_compute_for_the_method(dataset, partition, monkeypatch):
    """On a clock that only a validation and an evaluation move on: FedFomo's time includes its validation."""
    now, validations = [0.0], [0]
    validated, scored = FedFomo._validation_loss, FedFomo.scores

    def validation_loss(self, client, batch):
        now[0] += 1
        validations[0] += 1
        return validated(self, client, batch)

    def scores(self, client, x, logits):
        now[0] += EVALUATION
        return scored(self, client, x, logits)

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(FedFomo, "_validation_loss", validation_loss)
    monkeypatch.setattr(FedFomo, "scores", scores)
    config = Config(method="fedfomo", rounds=2, epochs=1, eval_every=1, participation=1.0)
    measured = simulate(config, dataset, partition)[0].measured
    assert validations[0] > 0
    assert measured.train_seconds == validations[0]
    assert measured.wall_seconds > EVALUATION
