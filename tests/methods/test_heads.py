"""Heads of other forms than those of the built-in networks."""

from __future__ import annotations

import pytest
from torch import nn

import pfl
from pfl.methods import METHODS

READ_THE_HEAD = ("fedgen", "pfedcs", "pfedsim")
REQUIRE_OTHER_NETWORKS = ("fedap", "fedsimsup")


def without_bias(shape, classes):
    extractor = nn.Sequential(nn.Flatten(), nn.Linear(shape[1] * shape[2], 16), nn.ReLU())
    return pfl.Network(extractor, nn.Linear(16, classes, bias=False))


@pytest.mark.parametrize(
    "method",
    [
        name if name in READ_THE_HEAD else pytest.param(name, marks=pytest.mark.slow)
        for name in METHODS
        if name not in REQUIRE_OTHER_NETWORKS
    ],
)
@pytest.mark.filterwarnings("ignore::pfl.core.errors.OptionWarning")
def test_a_method_trains_a_head_without_a_bias(method):
    options = {"clients": 4, "rounds": 3, "epochs": 1, "participation": 1.0, "progress": False}
    (run,) = pfl.simulate(method, "digits", model=without_bias, **options)
    assert run.metrics.rounds[-1].round == 3
