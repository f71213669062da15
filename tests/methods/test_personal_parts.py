"""What FedBN, FedBABU, FedUpdate and LG-FedAvg keep personal, and what they train."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import pfl
from pfl.core.config import Config
from pfl.run.validation import validated, warnings_of
from tests.methods.scripted import scripted
from tests.methods.toy import after_rounds


@pytest.mark.parametrize("model", ["resnet8", "mobilenet_v2", "lenet5_bn"])
def test_batch_norm_is_found_whatever_its_modules_are_called(model):
    assert warnings_of(validated(Config(method="fedbn", model=model))) == ()


def test_fedbn_trains_networks_of_other_samples():
    rng = np.random.default_rng(0)
    series = pfl.from_arrays(rng.normal(size=(80, 6, 20)).astype(np.float32), np.arange(80) % 3)
    (run,) = pfl.simulate("fedbn", series, model="cnn1d", clients=4, rounds=1, epochs=1, progress=False)
    assert run.metrics.rounds[-1].round == 1


def test_fedbn_without_batch_norm_is_a_warning_not_an_error():
    lines = warnings_of(validated(Config(method="fedbn", model="lenet5")))
    assert any("no batch norm" in line for line in lines)


def test_fedbabu_never_trains_the_head(dataset, partition):
    # Weight decay and momentum would move a head that merely has no gradient.
    _, begun = after_rounds("fedbabu", dataset, partition, 0)
    _, server = after_rounds("fedbabu", dataset, partition, 3, weight_decay=0.1, momentum=0.5)
    for name in server.groups["head"]:
        assert torch.equal(server.store[name][:], begun.store[name][:])
    name = "extractor.conv1.weight"
    assert not torch.equal(server.store[name][:], begun.store[name][:])


@pytest.mark.parametrize("method", ["fedbabu", "fedupdate", "perfedavg"])
def test_what_a_client_adapts_is_discarded(method, dataset, partition):
    _, often = after_rounds(method, dataset, partition, 3, eval_every=1)
    _, never = after_rounds(method, dataset, partition, 3, eval_every=9)
    for name, stack in often.store.tensors.items():
        assert torch.equal(stack, never.store.tensors[name])


@pytest.mark.parametrize("method", ["fedbabu", "fedupdate", "perfedavg"])
def test_uploads_are_averaged_uniformly(method):
    simulation = scripted(method, [1.0, 4.0], [6, 12])
    simulation.advance()
    name = "extractor.conv1.bias"
    moved = simulation.runs[0].server.store[name] - simulation.backend.initial[name]
    assert moved.unique().tolist() == pytest.approx([2.5], abs=1e-12)


def test_fedupdate_can_go_on_from_its_steps(dataset, partition):
    steps = {"steps": 2, "update_lr": 0.5}
    simulation, server = after_rounds(
        "fedupdate", dataset, partition, 1, hyperparameters={**steps, "persist": True}
    )
    assert [phase.steps for phase in simulation.program.method.phases(server)] == [None]
    server.round += 1
    phases = simulation.program.method.phases(server)
    assert [(phase.steps, phase.lr) for phase in phases] == [(2, 0.5), (None, 1.0)]


def test_fedupdate_evaluates_the_average_when_it_takes_no_step(dataset, partition):
    simulation, _ = after_rounds(
        "fedupdate", dataset, partition, 2, eval_every=1, hyperparameters={"steps": 0}
    )
    accuracies = simulation.runs[0].history[-1].moments
    assert accuracies["adapted"] == accuracies["post_aggregation"]


def test_more_of_the_last_layers_may_be_global(dataset, partition):
    _, server = after_rounds("lgfedavg", dataset, partition, 2, hyperparameters={"layers": 2})
    shared = {name for name in server.groups.trainable if server.store.shared(name)}
    assert shared == {"extractor.fc2.weight", "extractor.fc2.bias", "head.weight", "head.bias"}
