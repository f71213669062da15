"""The stacked backend does in one call what the loop does client by client."""

from __future__ import annotations

import pytest

from pfl.core.config import Config
from pfl.engine.local_training import Task
from pfl.engine.round import begin_round
from pfl.engine.stacked import StackedBackend
from pfl.engine.transfer import on_device
from pfl.testing.emulated import DEVICE, emulated
from pfl.testing.synthetic import make_clients, make_dataset
from tests.conftest import sampled, simulation_of


def forward_calls(clients: int, monkeypatch) -> int:
    """Calls of the network's forward in one round of local training with ``clients`` equal clients."""
    data = make_dataset(samples=1200)
    split = make_clients(data, sizes=[16] * clients)
    config = Config(method="fedavg", model="lenet5_bn", participation=1.0, rounds=1, epochs=1, batch_size=8)
    simulation = simulation_of(config, data, split, StackedBackend())
    monkeypatch.setattr("pfl.engine.seed_run.evaluate", lambda *_: ({}, {}, None))
    calls = []
    simulation.program.net.register_forward_pre_hook(lambda *_: calls.append(1))
    simulation.advance()
    return len(calls)


def test_as_many_forward_calls_for_twenty_clients_as_for_one(monkeypatch):
    assert forward_calls(20, monkeypatch) == forward_calls(1, monkeypatch) == 2


@pytest.mark.parametrize(
    "method", sampled(["fedavg", "fedrep", "perfedavg", "pfedme", "fedsimsup", "pfedcs", "spfl"])
)
def test_local_training_never_waits_for_the_device(method, dataset, partition):
    config = Config(method=method, model="lenet5_bn", participation=1.0, batch_size=8)
    with emulated() as device:
        simulation = simulation_of(config, dataset, partition, StackedBackend(), (0, 1), DEVICE)
        tasks = [begin_round(run.server, run.method) for run in simulation.runs]
        device.waits.clear()
        simulation.backend.train(Task.joined(tasks))
    assert not device.waits


def test_no_step_moves_anything_to_the_device(dataset, partition, monkeypatch):
    moved = {}
    for epochs in (1, 4):
        config = Config(method="fedavg", model="lenet5_bn", participation=1.0, epochs=epochs, batch_size=8)
        simulation = simulation_of(config, dataset, partition, StackedBackend())
        task = begin_round(simulation.runs[0].server, simulation.runs[0].method)
        calls = moved[epochs] = []
        counted = lambda *arguments, calls=calls: calls.append(1) or on_device(*arguments)  # noqa: E731
        monkeypatch.setattr("pfl.engine.stack.on_device", counted)
        simulation.backend.train(task)
    assert len(moved[1]) == len(moved[4]) > 0
