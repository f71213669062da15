"""FedAvgM, FedAdam and FedYogi: the server's steps, by hand."""

from __future__ import annotations

import math

import pytest

from tests.methods.scripted import history, models, scripted

CHANGES = (1.0, -2.0, 0.5)
"""What every client moves by in rounds 1, 2 and 3."""


def positions(method, **hyper):
    simulation = scripted(method, lambda _p, round, _c: CHANGES[round - 1], [6, 12], **hyper)
    return [first for first, *_ in history(simulation, len(CHANGES))]


def test_fedavgm_moves_by_the_decayed_sum_of_changes():
    model, momentum, expected = 0.0, 0.0, []
    for change in CHANGES:
        momentum = 0.5 * momentum + change
        model += 0.3 * momentum
        expected.append(model)
    assert positions("fedavgm", beta=0.5, server_lr=0.3) == pytest.approx(expected)


@pytest.mark.parametrize("method", ["fedadam", "fedyogi"])
def test_adaptive_steps_are_the_paper_s(method):
    b1, b2, tau, rate = 0.8, 0.9, 0.1, 0.3
    model, mean, square, expected = 0.0, 0.0, tau**2, []
    for change in CHANGES:
        mean = b1 * mean + (1 - b1) * change
        if method == "fedadam":
            square = b2 * square + (1 - b2) * change**2
        else:
            square -= (1 - b2) * change**2 * math.copysign(1, square - change**2)
        model += rate * mean / (math.sqrt(square) + tau)
        expected.append(model)
    moved = positions(method, beta1=b1, beta2=b2, tau=tau, server_lr=rate)
    assert moved == pytest.approx(expected)


def test_changes_are_averaged_by_training_samples():
    simulation = scripted("fedavgm", [1.0, 4.0], [6, 12])
    simulation.advance()
    assert models(simulation) == pytest.approx([3.0, 3.0])
