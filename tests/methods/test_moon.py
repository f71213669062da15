"""MOON's contrast, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from pfl.engine.client import Client
from pfl.methods.moon import MOON
from pfl.models._network import Network
from tests.methods import toy

X, Y = [[3.0, 4.0]], [0]


def tensors(extractor: list[list[float]]) -> dict[str, torch.Tensor]:
    return {
        "extractor.1.weight": torch.tensor(extractor, dtype=torch.float64),
        "head.weight": torch.eye(2, dtype=torch.float64),
        "head.bias": torch.zeros(2, dtype=torch.float64),
    }


@toy.with_and_without_padding
def test_the_contrast_compares_the_features_of_three_models(padded):
    extractor = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(2, 2, bias=False))
    net = Network(extractor, torch.nn.Linear(2, 2)).double()
    own, received = tensors([[1.0, 0.0], [0.0, 1.0]]), tensors([[0.0, 1.0], [1.0, 0.0]])
    previous = {"extractor.1.weight": torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)}
    client = Client(net, own, received, {"previous": previous})
    client.attach(toy.batch(X, Y))
    loss = MOON(mu=2.0, tau=0.5).loss(client, toy.batch(X, Y, padded))

    # z = (3, 4), the global model's features are (4, 3), and the last model's are (3, 0).
    positive, negative = 24 / 25 / 0.5, 3 / 5 / 0.5
    contrast = -math.log(math.exp(positive) / (math.exp(positive) + math.exp(negative)))
    entropy = math.log(math.exp(3) + math.exp(4)) - 3
    assert loss.item() == pytest.approx(entropy + 2 * contrast)


def test_the_last_model_is_the_one_that_a_participant_trained(dataset, partition):
    _, server = toy.after_rounds("moon", dataset, partition, 1)
    stored = server.client_state["previous"]["extractor.conv1.weight"]
    torch.testing.assert_close(stored[server.participants], server.trained["extractor.conv1.weight"])
