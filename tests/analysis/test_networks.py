"""What layers answer, where networks look, what is sensitive."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pfl.analysis.activation import activation_maps, spread
from pfl.analysis.representations import layers, outputs
from pfl.core.errors import InvalidInput
from pfl.models import MODELS
from pfl.models._network import Network


class SumOfChannels(nn.Module):
    """(B, C, H, W) to (B, C)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum((2, 3))


@pytest.fixture
def bright() -> Network:
    """Two channels that copy the image and its negative; class 0 asks for the one, class 1 for the other."""
    convolution = nn.Conv2d(1, 2, 1, bias=False)
    convolution.weight.data = torch.tensor([1.0, -1.0]).view(2, 1, 1, 1)
    head = nn.Linear(2, 2, bias=False)
    head.weight.data = torch.eye(2)
    return Network(nn.Sequential(convolution, SumOfChannels()), head)


def test_layers_are_convolutions_and_linear_layers_in_order():
    assert list(layers(MODELS["lenet5_bn"]((3, 32, 32), 10))) == ["conv1", "conv2", "fc1", "fc2", "head"]


def test_every_layer_answers_for_every_image():
    answers = outputs(MODELS["lenet5_bn"]((3, 32, 32), 10), torch.zeros(7, 3, 32, 32))
    assert {name: len(output) for name, output in answers.items()} == dict.fromkeys(answers, 7)
    assert answers["head"].shape == (7, 10)


def test_a_map_is_high_where_the_image_speaks_for_the_class(bright):
    image = torch.tensor([[[[2.0, -1.0], [0.0, 4.0]]]])
    # the gradient of logit 0 is 1 for channel 0 and 0 for channel 1
    assert activation_maps(bright, image, torch.tensor([0]))[0].tolist() == [[0.5, 0.0], [0.0, 1.0]]
    assert activation_maps(bright, image, torch.tensor([1]))[0].tolist() == [[0.0, 1.0], [0.0, 0.0]]


def test_a_map_of_nothing_is_zero(bright):
    image = -torch.ones(1, 1, 2, 2)
    assert activation_maps(bright, image, torch.tensor([0])).count_nonzero() == 0


def test_a_map_has_the_images_size_and_needs_no_trainable_parameter():
    net = MODELS["cnn_digits"]((1, 8, 8), 10).requires_grad_(False)
    maps = activation_maps(net, torch.rand(3, 1, 8, 8), torch.tensor([0, 1, 2]))
    assert maps.shape == (3, 8, 8)
    assert not maps.requires_grad


def test_a_network_without_convolutions_has_no_maps():
    net = Network(nn.Flatten(), nn.Linear(4, 2))
    with pytest.raises(InvalidInput, match="convolution"):
        activation_maps(net, torch.zeros(1, 1, 2, 2), torch.tensor([0]))


def test_spread_is_the_share_above_half_of_the_largest():
    maps = torch.tensor([[[1.0, 0.5], [0.4, 0.0]], [[0.0, 0.0], [0.0, 0.0]]])
    assert spread(maps).tolist() == [0.5, 0.0]
