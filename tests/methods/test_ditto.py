"""Ditto's two models: the global one is FedAvg's, the personal one is kept close to it."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from pfl.methods._personal_model import with_personal_model
from pfl.methods.ditto import Ditto
from tests.conftest import CONFIG
from tests.methods import toy
from tests.methods.curves import losses


def test_the_personal_gradient_holds_the_distance_to_the_received_model():
    # All pixels are 0 and there is no bias, so cross-entropy has no gradient in the weights.
    received = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    participant = toy.client(received.tolist())
    with_personal_model(participant.net)
    personal = received + torch.tensor([[0.5, 0.0], [0.0, -2.0]], dtype=torch.float64)
    tensors = dict(participant.net.named_parameters()) | {"personal.head.weight": personal}
    participant = dataclasses.replace(
        participant, params=tensors, start=tensors, trained=("head.weight", "personal.head.weight")
    )
    gradient, loss = Ditto(lam=0.3)._both(participant, (toy.batch([[0.0, 0.0]], [0]),))
    assert loss.item() == pytest.approx(2 * math.log(2) + 0.15 * (0.25 + 4))
    torch.testing.assert_close(gradient["personal.head.weight"], 0.3 * (personal - received))
    assert not gradient["head.weight"].any()


def test_the_personal_model_may_have_a_number_of_epochs_of_its_own(dataset, partition):
    def curve(method, own=None, moment="post_local", **options):
        return losses(dataset, partition, method, own, (moment,), batch_order="fixed", **options)

    assert curve("ditto", {"personal_epochs": CONFIG.epochs}) == curve("ditto")
    # Without the proximal term the personal model is trained locally, for as many epochs as asked for.
    longer = {"lam": 0.0, "personal_epochs": 3}
    for ours, theirs in (
        (curve("ditto", longer), curve("local", epochs=3)),
        (curve("ditto", longer, "post_aggregation"), curve("fedavg", moment="post_aggregation")),
    ):
        assert np.array(ours) == pytest.approx(np.array(theirs), abs=1e-9)
