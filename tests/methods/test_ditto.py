"""Ditto's two models: the global one is FedAvg's, the personal one is kept close to it."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from pfl.methods._personal_model import with_personal_model
from pfl.methods.ditto import Ditto
from pfl.run.simulate import simulate
from tests.conftest import CONFIG
from tests.methods import toy
from tests.methods.curves import assert_apart, assert_same, curve


@pytest.mark.parametrize("lam", [0.0, 2.0])
def test_the_global_model_is_fedavg_s_whatever_lambda(lam, dataset, partition):
    assert_same(curve(dataset, partition, "ditto", {"lam": lam}), curve(dataset, partition, "fedavg"))


def test_with_lambda_0_the_personal_models_are_those_of_local_training(dataset, partition):
    local = curve(dataset, partition, "local", moment="post_local")
    assert_same(curve(dataset, partition, "ditto", {"lam": 0.0}, moment="post_local"), local)
    assert_apart(curve(dataset, partition, "ditto", {"lam": 1.0}, moment="post_local"), local)


def test_only_the_global_model_is_sent(dataset, partition):
    ditto, fedavg = (
        simulate(dataclasses.replace(CONFIG, method=method), dataset, partition, (0,))[0].metrics
        for method in ("ditto", "fedavg")
    )
    assert (ditto.bytes_down, ditto.bytes_up) == (fedavg.bytes_down, fedavg.bytes_up)


def test_the_personal_gradient_holds_the_distance_to_the_received_model():
    # All pixels are 0 and there is no bias, so cross-entropy has no gradient in the weights.
    received = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    one = toy.client(received.tolist())
    with_personal_model(one.net)
    personal = received + torch.tensor([[0.5, 0.0], [0.0, -2.0]], dtype=torch.float64)
    tensors = dict(one.net.named_parameters()) | {"personal.head.weight": personal}
    one = dataclasses.replace(
        one, params=tensors, start=tensors, trained=("head.weight", "personal.head.weight")
    )
    gradient, loss = Ditto(lam=0.3)._both(one, (toy.batch([[0.0, 0.0]], [0]),))
    assert loss.item() == pytest.approx(2 * math.log(2) + 0.15 * (0.25 + 4))
    torch.testing.assert_close(gradient["personal.head.weight"], 0.3 * (personal - received))
    assert not gradient["head.weight"].any()


def test_the_personal_model_may_have_a_number_of_epochs_of_its_own(dataset, partition):
    fixed = {"batch_order": "fixed"}
    usual = curve(dataset, partition, "ditto", moment="post_local", **fixed)
    as_many = curve(
        dataset, partition, "ditto", {"personal_epochs": CONFIG.epochs}, moment="post_local", **fixed
    )
    assert_same(as_many, usual)
    # Without the proximal term the personal model is trained locally, for as many epochs as asked for.
    longer = {"lam": 0.0, "personal_epochs": 3}
    local = curve(dataset, partition, "local", moment="post_local", epochs=3, **fixed)
    assert_same(curve(dataset, partition, "ditto", longer, moment="post_local", **fixed), local)
    assert_same(
        curve(dataset, partition, "ditto", longer, **fixed), curve(dataset, partition, "fedavg", **fixed)
    )
