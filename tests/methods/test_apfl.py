"""APFL's mixture: its ends are FedAvg and local training, and its weight descends on the mixture's loss."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from pfl.methods._personal_model import with_personal_model
from pfl.methods.apfl import APFL, WEIGHT_DECAY
from tests.methods import toy
from tests.methods.curves import assert_same, curve

PERSONAL = torch.tensor([[0.0, 1.0], [0.5, 0.0]], dtype=torch.float64)


def test_with_alpha_0_the_mixture_is_the_global_model_of_fedavg(dataset, partition):
    hyper = {"alpha": 0.0, "adaptive": False}
    assert_same(curve(dataset, partition, "apfl", hyper), curve(dataset, partition, "fedavg"))


def test_with_alpha_1_the_mixture_is_the_model_of_local_training(dataset, partition):
    hyper = {"alpha": 1.0, "adaptive": False}
    local = curve(dataset, partition, "local", moment="post_local")
    assert_same(curve(dataset, partition, "apfl", hyper, moment="post_local"), local)


def client(alpha: float):
    one = toy.client([[1.0, 0.0], [0.0, 2.0]], {"alpha": torch.tensor(alpha, dtype=torch.float64)})
    with_personal_model(one.net)
    tensors = dict(one.net.named_parameters()) | {"personal.head.weight": PERSONAL}
    return dataclasses.replace(one, params={name: tensor.detach() for name, tensor in tensors.items()})


@pytest.mark.parametrize("rows", [None, [1, 0]])
def test_the_weight_takes_one_step_on_the_mixture_s_loss(rows):
    pixels, labels = ([[1.0, 1.0]], [0]) if rows is None else ([[1.0, 1.0], [7.0, 0.0]], [0, 1])
    one = client(0.3)
    step = APFL()._weigh(one, (toy.batch(pixels, labels, rows),), 0.1)

    alpha = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    x = torch.tensor([1.0, 1.0], dtype=torch.float64)
    mixture = alpha * PERSONAL @ x + (1 - alpha) * one.params["head.weight"] @ x
    loss = torch.nn.functional.cross_entropy(mixture[None], torch.tensor([0]))
    (loss + WEIGHT_DECAY / 2 * alpha**2).backward()
    assert step.state["alpha"].item() == pytest.approx(0.3 - 0.1 * alpha.grad.item())
    assert step.loss.item() == pytest.approx(loss.item())


def test_the_weight_stays_between_0_and_1():
    step = APFL()._weigh(client(0.3), (toy.batch([[1.0, 1.0]], [1]),), 1e3)
    assert step.state["alpha"].item() in (0.0, 1.0)


def test_each_participant_moves_its_own_weight(dataset, partition):
    _, server = toy.after_rounds("apfl", dataset, partition, 1)
    moved = (server.client_state["alpha"] != 0.5).nonzero().squeeze(1)
    assert moved.tolist() == server.participants.tolist()
