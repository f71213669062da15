"""Groups are found by module and by module type."""

import pytest
import torch

from pfl.core.errors import InvalidInput
from pfl.engine.groups import Groups, bind
from pfl.engine.mixing import Average, Identity
from pfl.models import MODELS
from pfl.models._network import Network

LENET = MODELS["lenet5_bn"]((3, 32, 32), 10)


def test_extractor_and_head_make_up_the_model():
    groups = Groups(LENET)
    assert set(groups["extractor"]) | set(groups["head"]) == set(groups["model"]) == set(groups["all"])
    assert groups["head"] == ("head.weight", "head.bias")


def test_batch_norm_is_found_by_type():
    groups = Groups(LENET)
    assert sum(dict(LENET.named_parameters())[name].numel() for name in groups["bn_affine"]) == 44
    assert sum(dict(LENET.named_buffers())[name].numel() for name in groups["bn_stats"]) == 44


def test_statistics_are_never_trained():
    assert not set(Groups(LENET).trained(("all",))) & set(Groups(LENET)["bn_stats"])


def test_a_later_group_overrides_an_earlier_one():
    average = Average(torch.ones(1))
    resolved = Groups(LENET).resolve({"all": average, "head": Identity()}, "mixed")
    assert isinstance(resolved["head.weight"], Identity)
    assert resolved["extractor.conv1.weight"] is average


def test_local_statistics_are_personal_whatever_the_method_mixes():
    groups = Groups(LENET)
    resolved = groups.resolve({"all": Average(torch.ones(1))}, "local")
    assert all(isinstance(resolved[name], Identity) for name in groups["bn_stats"])
    assert isinstance(resolved[groups["bn_affine"][0]], Average)


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


def test_a_bound_network_computes_with_the_given_tensors():
    net = MODELS["lenet5"]((1, 28, 28), 10)
    zeros = {name: torch.zeros_like(p) for name, p in net.named_parameters()}
    bind(net, zeros)
    assert (net(torch.randn(2, 1, 28, 28)) == 0).all()


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
