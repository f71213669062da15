"""FedALA's element-wise mixtures, by hand."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from pfl.methods.fedala import FedALA
from tests.methods import toy

OWN = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
RECEIVED = torch.tensor([[2.0, 0.5], [0.0, -1.0]], dtype=torch.float64)
WEIGHT = torch.tensor([[0.5, 0.25], [1.0, 0.0]], dtype=torch.float64)


def client():
    state = {"own": {"head.weight": OWN}, "weight": {"head.weight": WEIGHT}}
    participant = toy.client([[9.0, 9.0], [9.0, 9.0]], state)
    return dataclasses.replace(participant, start={"head.weight": RECEIVED}, trained=("head.weight",))


@pytest.mark.parametrize("eta", [0.3, 100.0])
def test_weights_descend_on_the_loss_of_the_mixture_and_stay_between_0_and_1(eta):
    batch = toy.batch([[1.0, 2.0], [0.5, -1.0]], [0, 1])
    step = FedALA(eta=eta)._weigh(client(), (batch,), 0.1)

    weight = WEIGHT.clone().requires_grad_()
    mixture = OWN + (RECEIVED - OWN) * weight
    loss = torch.nn.functional.cross_entropy(batch.x.flatten(1) @ mixture.T, batch.y)
    loss.backward()
    moved = (WEIGHT - eta * weight.grad).clamp(0, 1)
    torch.testing.assert_close(step.state["weight"]["head.weight"], moved)
    torch.testing.assert_close(step.params["head.weight"], OWN + (RECEIVED - OWN) * moved)
    assert step.loss.item() == pytest.approx(loss.item())


def test_only_the_last_layers_are_mixed(dataset, partition):
    _, server = toy.after_rounds("fedala", dataset, partition, 1, hyperparameters={"layers": 2})
    layers = ("extractor.fc2", "head")
    expected = {f"{layer}.{part}" for layer in layers for part in ("weight", "bias")}
    assert server.client_state["weight"].keys() == expected


def test_weights_are_learnt_on_a_share_of_the_batches(dataset, partition):
    simulation, server = toy.after_rounds("fedala", dataset, partition, 1)
    method = simulation.program.method
    weighing, training = (server.steps(server.client_ids, phase) for phase in method.phases(server))
    expected = torch.ceil(0.8 * training - 1e-9)
    assert weighing.tolist() == expected.tolist()
