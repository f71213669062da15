"""FedNova's normalised average, by hand."""

from __future__ import annotations

import pytest
import torch

from pfl.methods.fednova import FedNova
from tests.methods.scripted import models, scripted
from tests.methods.toy import after_rounds


def test_a_change_is_divided_by_the_client_s_steps():
    # 16 and 48 samples in batches of 16, two epochs: 2 and 6 steps. The clients move by 1 and 3.
    simulation = scripted("fednova", [1.0, 3.0], [16, 48])
    simulation.advance()
    effective = 2 / 4 + 6 * 3 / 4
    assert models(simulation) == pytest.approx([effective * (1 / 4 / 2 + 3 / 4 * 3 / 6)] * 2)


def test_momentum_lengthens_the_effective_steps():
    simulation = scripted("fednova", lambda *_: 1.0, [16, 48])
    server = simulation.runs[0].server
    server.config = type(server.config)(**{**vars(server.config), "momentum": 0.5})
    simulation.advance()
    # Of two steps, the first gradient counts 1 + rho and the second 1.
    first, second = FedNova()._effective_steps(server).tolist()
    assert first == pytest.approx(2.5)
    assert second == pytest.approx(sum(sum(0.5**k for k in range(step)) for step in range(1, 7)))


def test_batch_norm_s_statistics_are_averaged_by_size(dataset, partition):
    _, server = after_rounds("fednova", dataset, partition, 1, participation=1.0)
    name = server.groups["bn_stats"][0]
    mean = (server.average().weights[:, None] * server.uploads[name]).sum(0)
    torch.testing.assert_close(server.store[name][0], mean)
