"""GPFL's loss, by hand; what it shares."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from pfl.engine.client import Client
from pfl.methods.gpfl import GPFL
from tests.methods import toy

EMBEDDING = [[3.0, 4.0], [1.0, 0.0]]


def client(**changes):
    """With valves that leave features as they are: no scale and no shift."""
    net = GPFL().client_network(toy.client([[1.0, 0.0], [0.0, 2.0]]).net, None).double()
    with torch.no_grad():
        net.embedding.weight.copy_(torch.tensor(EMBEDDING))
        for parameter in net.valve.parameters():
            parameter.zero_()
    tensors = dict(net.named_parameters())
    shares = torch.tensor([0.25, 0.75], dtype=torch.float64)
    one = Client(net, tensors, tensors, {"shares": shares}, tuple(tensors))
    return dataclasses.replace(one, **changes)


@pytest.mark.parametrize("rows", [None, [1, 0]])
def test_the_loss_adds_both_entropies_the_distance_and_the_decay(rows):
    pixels, labels = ([[1.0, 1.0]], [0]) if rows is None else ([[1.0, 1.0], [7.0, 0.0]], [0, 1])
    loss = GPFL(lam=0.5, mu=0.2).loss(client(), toy.batch(pixels, labels, rows)).item()

    def entropy(logits):
        return math.log(sum(map(math.exp, logits))) - logits[0]

    cosines = [7 / (5 * math.sqrt(2)), 1 / math.sqrt(2)]
    distance = math.hypot(1 - 3, 1 - 4)
    decay = 25 + 1
    expected = entropy([1.0, 2.0]) + entropy(cosines) + 0.5 * distance + 0.1 * decay
    assert loss == pytest.approx(expected)


def test_the_context_of_prediction_is_the_client_s_mean_embedding():
    one = client()
    with torch.no_grad():  # the shift is the layer norm's bias, plus its weight times the normalised context
        one.net.valve["shift"][0].weight.copy_(torch.eye(2))
        one.net.valve["shift"][2].weight.fill_(1.0)
    context = torch.tensor([0.25 * 3 + 0.75, 0.25 * 4], dtype=torch.float64)
    shift = (context - context.mean()) / (context.var(unbiased=False) + 1e-5).sqrt()
    features = (torch.tensor([1.0, 1.0]).double() + shift).relu()
    logits = GPFL().logits(one, toy.batch([[1.0, 1.0]], [0]).x)[0]
    assert logits.tolist() == pytest.approx([features[0].item(), 2 * features[1].item()])


def test_everything_but_the_head_is_shared(dataset, partition):
    _, server = toy.after_rounds("gpfl", dataset, partition, 1)
    for name in server.groups.trainable:
        assert server.bank.shared(name) == (not name.startswith("head.")), name
