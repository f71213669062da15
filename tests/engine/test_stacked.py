"""The stacked backend does in one call what the loop does client by client."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

import pfl
from pfl.core.config import Config, Execution
from pfl.data.federation import Federation
from pfl.engine.local_training import Task
from pfl.engine.loop import LoopBackend
from pfl.engine.method import Phase
from pfl.engine.round import begin_round
from pfl.engine.stacked import StackedBackend
from pfl.engine.transfer import on_device
from pfl.run.simulate import make_simulation
from pfl.run.validation import validated
from pfl.testing.emulated import DEVICE, emulated
from pfl.testing.synthetic import make_clients, make_dataset
from tests.conftest import CONFIG, sampled, simulation_of


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


def scaled(client, batch, factor):
    return torch.as_tensor(factor).sum() * batch.cross_entropy(client.net(batch.x))


class Scaling:
    def __init__(self, factor):
        self.factor = factor

    def loss(self, client, batch):
        return scaled(client, batch, self.factor)


@pytest.mark.parametrize(
    "loss",
    [
        lambda factor: lambda client, batch: scaled(client, batch, factor),
        lambda factor: lambda client, batch, factor=factor: scaled(client, batch, factor),
        lambda factor: lambda client, batch, *, factor=factor: scaled(client, batch, factor),
        lambda factor: partial(scaled, factor=factor),
        lambda factor: Scaling(factor).loss,
    ],
    ids=["closure", "default", "default by name", "partial", "bound to another object"],
)
@pytest.mark.parametrize(
    "kind", [float, torch.tensor, lambda value: [value]], ids=["float", "tensor", "list"]
)
def test_a_loss_of_a_phase_has_the_values_that_it_captured_for_each_seed(loss, kind, dataset, partition):
    class Own(pfl.Method):
        """The loss of each seed has its own scale."""

        def phases(self, server):
            return (Phase(loss=loss(kind(1.0 + server.seed))),)

    expected, losses = (
        [
            run.metrics.rounds[-1].train_loss
            for run in pfl.simulate(
                Own,
                dataset,
                partition,
                seeds=(0, 3),
                rounds=1,
                epochs=1,
                dtype="float64",
                execution=Execution(backend=backend),
                progress=False,
            )
        ]
        for backend in ("loop", "stacked")
    )
    assert losses == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("variants", [{"lr": 0.05}, {"hyperparameters": {"decay": 0.5}}], ids=["lr", "loss"])
def test_seeds_and_learning_rates_share_a_stack_where_a_closure_captures_equal_values(
    variants, dataset, partition, monkeypatch
):
    """That of FedGen from the second round on."""
    config = replace(CONFIG, method="fedgen", participation=1.0, epochs=1)
    federation = Federation(dataset, partition, torch.device("cpu"), torch.float64)
    configs = [validated(config), validated(replace(config, **variants))]
    simulation = make_simulation(configs, federation, (0, 3), StackedBackend())
    clients = []
    train = StackedBackend._train
    monkeypatch.setattr(
        StackedBackend, "_train", lambda self, task: clients.append(len(task.clients)) or train(self, task)
    )
    for _ in range(2):
        simulation.advance()
    together = [24] if "lr" in variants else [12, 12]
    assert clients == [24, *together]


class OwnClasses(pfl.Method):
    """A client's model chooses among the classes of its training samples."""

    def initialise(self, server):
        server.client_state["classes"] = server.label_counts > 0

    def logits(self, client, x):
        return torch.where(client.state["classes"], client.net(x), -torch.inf)


class Steep(OwnClasses):
    """The slope of its loss is infinite where a class is not the client's own."""

    def loss(self, client, batch):
        own = self.logits(client, batch.x).softmax(1).gather(1, batch.y[:, None])
        return batch.mean(-own.log().squeeze(1))


@pytest.mark.parametrize("method", [OwnClasses, Steep])
def test_padding_is_without_effect_where_its_loss_would_be_infinite(method):
    values = []
    for backend in ("loop", "stacked"):
        (run,) = pfl.simulate(
            method,
            "digits",
            "pathological:2",
            clients=10,
            participation=1.0,
            rounds=2,
            epochs=1,
            dtype="float64",
            execution=Execution(backend=backend),
            progress=False,
        )
        values.append([run.metrics.rounds[-1].train_loss, run.metrics.rounds[-1].moments["post_local"].loss])
    assert values[1] == pytest.approx(values[0], abs=1e-9)


@pytest.mark.parametrize("each", [False, True])
def test_an_infinite_value_of_a_sample_is_not_multiplied_with_padding(each, dataset, partition):
    def infinite(_, batch):
        values = torch.full_like(batch.y, torch.inf, dtype=torch.float64)
        return {"value": values if each else batch.sum(values)}

    collected = []
    for backend in (LoopBackend(), StackedBackend()):
        server = simulation_of(CONFIG, dataset, partition, backend).runs[0].server
        samples = [*server.samples[:-1], server.samples[-1][:0]]
        tensors = server.store.rows(server.client_ids)
        collected.append(server.collect(infinite, server.client_ids, tensors, samples, each)["value"])
    assert collected[1].tolist() == collected[0].tolist()
    assert set(collected[0].unique().tolist()) == {0, torch.inf}
