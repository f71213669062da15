"""The stacked backend does in one call what the loop does client by client."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pfl.config import Config, Execution
from pfl.data.federation import Federation
from pfl.engine.simulation import Simulation, simulate
from pfl.engine.stacked import StackedBackend
from tests.conftest import make_clients, make_dataset


def forward_calls(clients: int, monkeypatch) -> int:
    """Calls of the network's forward in one round of local training with ``clients`` equal clients."""
    data = make_dataset(samples=1200)
    split = make_clients(data, sizes=[16] * clients)
    config = Config(
        method="fedavg", model="lenet5_bn", participation=1.0, rounds=1, epochs=1, batch_size=8
    ).validated()
    federation = Federation(data, split, torch.device("cpu"), torch.float32)
    simulation = Simulation([config], federation, (0,), StackedBackend())
    monkeypatch.setattr("pfl.engine.simulation.evaluate", lambda *_: ({}, None))
    calls = []
    simulation.program.net.register_forward_pre_hook(lambda *_: calls.append(1))
    simulation.advance()
    return len(calls)


def test_as_many_forward_calls_for_twenty_clients_as_for_one(monkeypatch):
    assert forward_calls(20, monkeypatch) == forward_calls(1, monkeypatch) == 2


@pytest.mark.parametrize("model", ["lenet5", "lenet5_bn"])
def test_unequal_clients_and_ragged_batches_agree_with_the_loop(model, dataset, partition):
    config = Config(
        method="fedavg",
        model=model,
        participation=1.0,
        rounds=2,
        epochs=2,
        batch_size=8,
        lr=0.1,
        momentum=0.5,
        weight_decay=1e-3,
        eval_every=1,
        dtype="float64",
    )
    loop, stacked = (
        simulate(config, dataset, partition, (0,), Execution(backend=backend))[0].metrics
        for backend in ("loop", "stacked")
    )
    for ours, theirs in zip(loop["rounds"], stacked["rounds"], strict=True):
        for moment in ("post_aggregation", "post_local"):
            assert ours[moment] == pytest.approx(theirs[moment], abs=1e-9)
        assert ours["train_loss"] == pytest.approx(theirs["train_loss"], abs=1e-9)


WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "equal.default")
"""Operations whose result, or its shape, has to come back from the device."""


class Waiting(TorchDispatchMode):
    """Takes note of the operations that would make a GPU's host wait."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, operation, types, arguments=(), options=None):
        indexing = str(operation).startswith(("aten.index.", "aten.index_put"))
        masks = [x for x in arguments[1] if x is not None] if indexing else []
        if any(name in str(operation) for name in WAITS) or any(x.dtype == torch.bool for x in masks):
            self.seen.append(str(operation))
        return operation(*arguments, **(options or {}))


@pytest.mark.parametrize("method", ["fedavg", "fedrep", "perfedavg", "pfedme"])
def test_local_training_never_waits_for_the_device(method, dataset, partition, monkeypatch):
    config = Config(method=method, model="lenet5_bn", participation=1.0, batch_size=8).validated()
    simulation = Simulation(
        [config], Federation(dataset, partition, torch.device("cpu"), torch.float32), (0,), StackedBackend()
    )
    task = simulation._begin(simulation.runs[0])
    lists = []
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: lists.append(tensor.shape) or [])
    with Waiting() as waiting:
        simulation.backend.train(task)
    assert waiting.seen == lists == []


def test_no_step_moves_anything_to_the_device(dataset, partition, monkeypatch):
    moved = {}
    plain = torch.from_numpy
    for epochs in (1, 4):
        config = Config(
            method="fedavg", model="lenet5_bn", participation=1.0, epochs=epochs, batch_size=8
        ).validated()
        simulation = Simulation(
            [config],
            Federation(dataset, partition, torch.device("cpu"), torch.float32),
            (0,),
            StackedBackend(),
        )
        task = simulation._begin(simulation.runs[0])
        calls = moved[epochs] = []
        monkeypatch.setattr(torch, "from_numpy", lambda array, calls=calls: calls.append(1) or plain(array))
        simulation.backend.train(task)
        monkeypatch.setattr(torch, "from_numpy", plain)
    assert len(moved[1]) == len(moved[4]) > 0
