"""APFL's mixture: its ends are FedAvg and local training, and its weight descends on the mixture's loss."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from pfl.methods._personal_model import with_personal_model
from pfl.methods.apfl import APFL
from tests.methods import toy

PERSONAL = torch.tensor([[0.0, 1.0], [0.5, 0.0]], dtype=torch.float64)
PARAMETERS = ("head.weight", "head.bias", "personal.head.weight", "personal.head.bias")


def learner(alpha: float):
    client = toy.client([[1.0, 0.0], [0.0, 2.0]], {"alpha": torch.tensor(alpha, dtype=torch.float64)})
    with_personal_model(client.net)
    tensors = dict(client.net.named_parameters()) | {"personal.head.weight": PERSONAL}
    params = {name: tensor.detach() for name, tensor in tensors.items()}
    return dataclasses.replace(client, params=params, trained=PARAMETERS)


def samples(padded):
    """A batch of two samples, and their pixels and labels."""
    pixels, labels = [[1.0, 1.0], [2.0, -1.0]], [0, 1]
    batch = toy.batch(pixels, labels, padded)
    return batch, torch.tensor(pixels, dtype=torch.float64), torch.tensor(labels)


@toy.with_and_without_padding
def test_the_weight_takes_fedtorch_s_step_computed_in_plain_torch(padded):
    batch, x, y = samples(padded)
    participant = learner(0.3)
    step = APFL()._weigh(participant, (batch,), 0.1)

    def model(weight):
        layer = torch.nn.Linear(2, 2).double()
        layer.load_state_dict({"weight": weight, "bias": torch.zeros(2)})
        return layer

    common, own = model(participant.params["head.weight"]), model(PERSONAL)
    entropy = torch.nn.functional.cross_entropy
    common_sgd, own_sgd = (torch.optim.SGD(net.parameters(), lr=0.1) for net in (common, own))
    entropy(common(x), y).backward()
    common_sgd.step()
    common.zero_grad()
    loss = entropy(0.3 * own(x) + 0.7 * common(x), y)
    loss.backward()
    own_sgd.step()
    slope = 0.02 * 0.3
    for v, w in zip(own.parameters(), common.parameters(), strict=True):
        slope += ((v - w) * (0.3 * v.grad + 0.7 * w.grad)).sum().item()
    assert step.state["alpha"].item() == pytest.approx(0.3 - 0.1 * slope)
    assert step.loss.item() == pytest.approx(loss.item())
    assert not step.params, "alpha alone moves before the training"


def test_the_weight_stays_between_0_and_1():
    step = APFL()._weigh(learner(0.3), (toy.batch([[1.0, 1.0]], [1]),), 1e3)
    assert step.state["alpha"].item() in (0.0, 1.0)


def test_each_participant_moves_its_own_weight(dataset, partition):
    _, server = toy.after_rounds("apfl", dataset, partition, 1)
    moved = (server.client_state["alpha"] != 0.5).nonzero().squeeze(1)
    assert moved.tolist() == server.participants.tolist()
