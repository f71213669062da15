"""Groups are stages, submodules and single tensors."""

import pytest
import torch

from pfl.core.errors import InvalidInput
from pfl.engine.groups import Groups
from pfl.models import MODELS
from pfl.models._network import Network

LENET = MODELS["lenet5_bn"]((3, 32, 32), 10)


@pytest.mark.parametrize("stage", [[torch.nn.Linear(2, 2)], ["0"]])
def test_a_stage_outside_of_the_network_is_refused_by_name(stage):
    net = Network(torch.nn.Flatten(), torch.nn.Linear(4, 2), stages={"low": stage})
    with pytest.raises(InvalidInput, match=r"^stages: low is not accepted; .* submodules of the network"):
        Groups(net)


def test_a_further_submodule_is_a_group_of_its_name():
    net = MODELS["lenet5"]((1, 28, 28), 10)
    net.add_module("supervisor", torch.nn.Linear(2, 2))
    groups = Groups(net)
    assert groups["supervisor"] == ("supervisor.weight", "supervisor.bias")
    assert not set(groups["supervisor"]) & set(groups["model"])


def test_stages_that_a_network_declares_take_the_place_of_base_and_head():
    low, high, head = (torch.nn.Linear(2, 2, bias=False) for _ in range(3))
    extractor = torch.nn.Sequential(low, high)
    groups = Groups(Network(extractor, head, stages={"low": [low], "rest": [high, head]}))
    assert groups.stages == ("stage:low", "stage:rest")
    assert groups["stage:low"] == ("extractor.0.weight",)
    assert groups["stage:rest"] == ("extractor.1.weight", "head.weight")


def test_stages_and_single_tensors_are_groups():
    groups = Groups(LENET)
    assert groups.stages == ("stage:base", "stage:head")
    assert groups["stage:head"] == groups["head"]
    assert groups["head.weight"] == ("head.weight",)
