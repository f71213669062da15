"""A network that breaks a rule of `check_network` is told so."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import pfl
from pfl.core.errors import InvalidInput
from pfl.models._layers import SingleClientMode
from pfl.testing import Violations, check_network
from pfl.testing.network_kit import KIT
from tests.testing.violating import violates

SHAPE = (1, 4, 4)


def simple(shape, classes):
    channels, height, width = shape
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(channels * height * width, 6),
        nn.BatchNorm1d(6),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(6, classes),
    )


class Extractor(nn.Module):
    """Sixteen pixels to six features, by way of ``change``."""

    def __init__(self, change):
        super().__init__()
        self.linear = nn.Linear(16, 6)
        self.change = change

    def forward(self, x):
        return self.change(self.linear(x.flatten(1)))


def changed(change):
    """A builder of a network whose features are changed."""

    def network(_shape, classes):
        return pfl.Network(Extractor(change), nn.Linear(6, classes))

    return network


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.second = nn.Linear(16, 16)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.first(x.flatten(1)))


class Faster(SingleClientMode):
    """Another function where the tensors are those of a single client."""

    def forward(self, x):
        return F.gelu(x) if self.single_client else F.relu(x)


def for_ten_classes(_shape, _classes):
    return pfl.Network(nn.Flatten(), nn.Linear(16, 10))


def tied(_shape, classes):
    return pfl.Network(Tied(), nn.Linear(16, classes))


def for_any_size(shape, classes):
    """A network that divides by the number of gaps between two columns."""
    pixels = shape[0] * shape[1] * shape[2]
    width = pixels // (shape[2] - 1)
    return pfl.Network(nn.Sequential(nn.Flatten(), nn.Linear(pixels, width)), nn.Linear(width, classes))


def constant(shape, classes):
    network = simple(shape, classes)
    for parameter in network.parameters():
        nn.init.constant_(parameter, 0.1)
    return network


def positive(x):
    """ReLU for a batch whose sum is positive, which the host would have to know."""
    return F.relu(x) if x.sum() > 0 else x


BROKEN = {
    "logits": (for_ten_classes, "model: .* expected a network with 3 logits, not 10"),
    "stages": (tied, "model: .* expected a network whose layers share no weights"),
    "image_size": (for_any_size, "ZeroDivisionError: .* by zero"),
    "initialisation": (constant, "two seeds give the same weights"),
    "determinism": (changed(lambda x: x * random.random()), "in training, two calls give different logits"),
    "stacked": (changed(positive), r"test_.*\.py:\d+: the stacked backend cannot run 'return .* if .*'"),
    "single_client": (changed(Faster()), "the gradient of .* differs by"),
    "padding": (changed(lambda x: x - x.mean(0)), "the gradient of .* differs by"),
    "device": (
        changed(lambda x: x * torch.ones(6)),
        r"RuntimeError: .*\(6,\) is on the host, the others are on the device",
    ),
}


@pytest.mark.parametrize("rule", KIT.rules)
def test_a_broken_network_is_told_so_in_one_line(rule):
    network, line = BROKEN[rule]
    with violates(rule, line):
        check_network(network, SHAPE, [rule])


@pytest.mark.parametrize("shape", [None, SHAPE])
def test_a_simple_network_meets_all_rules_as_a_function_and_as_a_module(shape):
    check_network(simple, shape)
    check_network(simple(shape or (1, 8, 8), 10), shape)


def test_a_parameter_that_does_not_matter_is_no_violation():
    def spare(_shape, classes):
        network = pfl.Network(nn.Flatten(), nn.Linear(16, classes))
        network.extractor.spare = nn.Parameter(torch.zeros(3))
        return network

    check_network(spare, SHAPE, [rule for rule in KIT.rules if rule != "image_size"])


def test_a_parameter_of_no_stage_is_named():
    def partly(_shape, classes):
        head = nn.Linear(16, classes)
        return pfl.Network(nn.Flatten(), head, stages={"head": []})

    with pytest.raises(Violations, match=r"stages: the stages have head.weight 0 times"):
        check_network(partly, SHAPE, ["stages"])


def test_no_rule_is_reported_after_a_network_that_is_not_built():
    def failing(_shape, _classes):
        raise ArithmeticError("no layers")

    with pytest.raises(Violations) as caught:
        check_network(failing)
    assert caught.value.lines == {"logits": "ArithmeticError: no layers"}


def test_an_unknown_network_is_no_violation():
    with pytest.raises(InvalidInput, match="did you mean 'lenet5'"):
        check_network("lenet")
