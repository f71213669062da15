"""Every built-in method meets every rule of the kit; and what else holds for all of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import pfl
from pfl.core.families import FAMILIES
from pfl.engine.method import Method
from pfl.engine.simulation import BYTES_PER_SCALAR
from pfl.methods import METHODS
from pfl.methods.fedfomo import FedFomo
from pfl.methods.fedgen import FedGen
from pfl.methods.fedrep import FedRep
from pfl.methods.pfedme import PFedMe
from pfl.testing import check_method
from pfl.testing.method_kit import KIT
from tests.conftest import CONFIG, SAMPLE, simulate
from tests.methods.toy import after_rounds

ALL = tuple(METHODS)

FAST = {
    **dict.fromkeys(("docstring", "hyperparameters", "search_space", "warm_up"), ALL),
    **dict.fromkeys(("backends", "hooks"), ALL),
    "full_participation": (),
    "forked_workers": ("fedavg", "fedap", "spfl", "knnper", "fedgen", "scaffold"),
}
"""The methods of each rule in the fast suite, where they are not `SAMPLE`; the others are in the slow one."""

OF_THE_SAMPLE = ("simulation", "choices", "device")
"""Rules for `SAMPLE` alone: other rules simulate every method, also on a device (`graphs`), and the battery
tries every choice."""


def cases() -> Iterator[Any]:
    """Every rule for every method."""
    for rule in KIT.rules:
        for method in METHODS:
            if method in FAST.get(rule, SAMPLE):
                yield pytest.param(method, rule, id=f"{rule}-{method}")
            elif rule not in OF_THE_SAMPLE:
                yield pytest.param(method, rule, id=f"{rule}-{method}", marks=pytest.mark.slow)


@pytest.mark.parametrize(("method", "rule"), list(cases()))
def test_a_method_meets_a_rule(method, rule):
    check_method(method, [rule])


@pytest.mark.parametrize(
    "method",
    [
        FedFomo(baseline="before_training"),
        FedGen(qualifies="largest"),
        FedRep(final_head_epochs=2),
        pytest.param(PFedMe(weights="equal"), marks=pytest.mark.slow),
    ],
    ids=lambda method: type(method).__name__,
)
def test_an_option_gives_the_same_numbers_in_both_backends_and_after_an_interruption(method):
    check_method(method, ["backends", "resume"])


@pytest.mark.parametrize("method", METHODS)
def test_a_built_in_method_has_a_line_for_lists_and_a_family(method):
    assert METHODS.summary(method).endswith(".")
    assert METHODS[method].family in FAMILIES.keys() - {Method.family}


@pytest.mark.parametrize("method", METHODS)
def test_local_batch_norm_statistics_are_what_each_client_trained(method, dataset, partition):
    _, server = after_rounds(method, dataset, partition, 1, bn_stats="local")
    for name in server.groups["bn_stats"]:
        assert torch.equal(server.store[name][server.participants], server.trained[name])


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


WHOLE = ("clusterfl", "ditto", "feddyn", "fedprox", "fedupdate")
WHOLE += ("fesem", "perfedavg", "pfedhn", "pfedme", "pfedsim")


@pytest.mark.parametrize("method", WHOLE)
def test_a_participant_receives_a_model_and_sends_one(method, dataset, partition):
    config = dataclasses.replace(CONFIG, method=method, rounds=2, participation=1.0, bn_stats="mixed")
    (fedavg,) = simulate(dataclasses.replace(config, method="fedavg"), dataset, partition)
    (result,) = simulate(config, dataset, partition)
    assert result.metrics.bytes_down == fedavg.metrics.bytes_down > partition.clients * 2 * BYTES_PER_SCALAR
    assert result.metrics.bytes_up == fedavg.metrics.bytes_up
