"""SCAFFOLD's control variates, by hand."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from pfl.methods.scaffold import Scaffold
from tests.methods import toy
from tests.methods.scripted import models, scripted

LR, STEPS = 0.05, 2  # of `scripted`: 16 samples in batches of 16, for two epochs


def test_variates_are_the_mean_gradients_of_the_last_local_training():
    # Two of four clients take part; client k moves by k + 1 in every round.
    simulation = scripted("scaffold", [1.0, 2.0, 3.0, 4.0], [16] * 4, participation=0.5)
    server = simulation.runs[0].server
    own, common, model = [0.0] * 4, 0.0, 0.0
    for _ in range(4):
        simulation.advance()
        present = server.participants.tolist()
        before = list(own)
        for client in present:
            own[client] += -common - (client + 1.0) / (STEPS * LR)
        common += sum(own[client] - before[client] for client in present) / 4
        model += sum(client + 1.0 for client in present) / 2
        assert server.client_state["variate"]["head.bias"][:, 0].tolist() == pytest.approx(own)
        assert server.state["variate"]["head.bias"][0, 0].item() == pytest.approx(common)
        assert models(simulation) == pytest.approx([model] * 4)


def test_the_server_rate_scales_the_mean_change():
    simulation = scripted("scaffold", lambda *_: 1.0, [16, 48], server_lr=0.25)
    simulation.advance()
    assert models(simulation) == pytest.approx([0.25, 0.25])


def test_a_client_without_a_step_keeps_its_variate():
    simulation = scripted("scaffold", [0.0, 1.0], [1, 16])
    simulation.advance()
    assert not simulation.runs[0].server.client_state["variate"]["head.bias"][0].any()


def test_the_local_gradient_holds_both_variates():
    own, common = torch.full((2, 2), 0.5, dtype=torch.float64), torch.eye(2, dtype=torch.float64)
    state = {"variate": {"head.weight": own}, "server_variate": {"head.weight": common}}
    client = dataclasses.replace(toy.client([[2.0, 0.0], [0.0, 1.0]], state), trained=("head.weight",))
    # No pixel is on, so cross-entropy has no gradient in the weights.
    gradient, _ = Scaffold()._corrected(client, (toy.batch([[0.0, 0.0]], [0]),))
    torch.testing.assert_close(gradient["head.weight"], common - own)
