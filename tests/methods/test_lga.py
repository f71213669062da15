"""LGA and PLGA through a scripted straggler schedule, by hand.

Clients 0, 1 and 2 add 1, -2 and 3 to every parameter; 0 and 1 miss one and two aggregations. A change is the
same in every element, so cosines are 1 or -1.
"""

import math

import pytest
import torch

from pfl.methods.lga import LGA
from tests.methods.scripted import history, numbers, scripted

OPPOSITE = math.exp(-1) / (math.e + math.exp(-1))  # S~ of S = -1; that of S = 1 is one half


def run(method, rounds, **hyper):
    simulation = scripted(method, [1.0, -2.0, 3.0], [12, 12, 12], stragglers=2, **hyper)
    return simulation, [first for first, *_ in history(simulation, rounds)]


def test_equation_11_applies_late_changes_to_the_present_model():
    _, observed = run("lga", 3)
    second = (3 + 1 + 6) / 2  # d = 1: nothing happened since the first aggregate, so no Taylor term
    late = second - 2 + OPPOSITE * 4 * (second - 3)  # (-2)^2, from w^t1 = 3 to w^s = 5
    assert observed == pytest.approx([3, second, (late + second + 3) / 2])


def test_equation_10_leaves_late_models_where_they_are():
    _, observed = run("lga", 3, equation=10, taylor=-1.0)
    second = (1 + 6) / 2
    late = -2 - OPPOSITE * 4 * (second - 3)
    assert observed == pytest.approx([3, second, (late + second + 3) / 2])


def test_the_consistent_coefficient_is_minus_lambda_over_rate_and_steps():
    # 12 samples are one batch of 16, so an epoch is a step; Config's rate is 0.05 and its epochs are 2.
    _, observed = run("lga", 3, coefficient="consistent", taylor=0.02)
    late = 5 - 2 - 0.02 / (0.05 * 2) * 4 * (5 - 3)
    assert observed[2] == pytest.approx((late + 5 + 3) / 2)
    _, observed = run("lga", 3, coefficient="consistent", taylor=0.02, steps=20)
    late = 5 - 2 - 0.02 / (0.05 * 20) * 4 * (5 - 3)
    assert observed[2] == pytest.approx((late + 5 + 3) / 2)


def test_the_consistent_coefficient_has_the_rate_at_which_the_late_client_trained():
    halved = {"lr_schedule": "step", "lr_step": 1, "lr_gamma": 0.5}
    _, observed = run("lga", 3, coefficient="consistent", taylor=0.02, changes=halved)
    late = 5 - 2 - 0.02 / (0.05 * 2) * 4 * (5 - 3)  # sent in round 1
    assert observed[2] == pytest.approx((late + 5 + 3) / 2)


@pytest.mark.parametrize("equation", [10, 11])
def test_the_taylor_term_is_zero_after_one_missed_aggregation(equation):
    for rounds in (1, 2):
        with_term, without = (
            run("lga", rounds, equation=equation, taylor=taylor)[1] for taylor in (100.0, 0.0)
        )
        assert with_term == without


def personal(simulation):
    method, server = simulation.program.method, simulation.runs[0].server
    return numbers(simulation, method.personal(server, "post_local"))


def test_personal_models_lie_between_the_prediction_and_the_global_model():
    simulation, observed = run("plga", 1)
    assert personal(simulation) == pytest.approx([0, 0, 3])  # nobody late has arrived: w^0
    simulation, observed = run("plga", 2)
    assert personal(simulation) == pytest.approx([(4 + 3) / 2, 0, (6 + 5) / 2])
    simulation, observed = run("plga", 3)
    late = 5 - 2 + OPPOSITE * 4 * 2
    assert personal(simulation) == pytest.approx(
        [(4 + 3) / 2, (1 - OPPOSITE) * late + OPPOSITE * 5, (8 + observed[2]) / 2]
    )


def test_a_low_temperature_leaves_a_client_that_goes_elsewhere_its_own_model():
    cold = 1 / (1 + math.exp(2 / 0.1))  # of S = -1; that of S = 1 is one half at any temperature
    simulation, observed = run("plga", 3, temperature=0.1)
    late = 5 - 2 + cold * 4 * 2
    assert personal(simulation) == pytest.approx(
        [(4 + 3) / 2, (1 - cold) * late + cold * 5, (8 + observed[2]) / 2]
    )


def test_training_may_start_from_the_personal_model():
    simulation, observed = run("plga", 2, personal_start=True)
    # Client 2 starts its second round from its personal model, 3; client 0 trained from w^0 = 0.
    assert observed == pytest.approx([3, (3 + 1 + 3 + 3) / 2])
    simulation, observed = run("plga", 3, personal_start=True)
    mine = (6 + 5) / 2
    late = 5 - 2 + OPPOSITE * 4 * 2
    assert observed[2] == pytest.approx((late + mine + 3) / 2)
    # Client 0 starts its second training from 3.5, not from the global model of 5, and arrives in round 4.
    own = observed[2] + 1
    simulation, observed = run("plga", 4, personal_start=True)
    assert personal(simulation)[0] == pytest.approx((own + observed[2]) / 2)


@pytest.mark.parametrize("division", ["network", "whole", "tensor"])
def test_the_softened_similarity_never_leaves_its_range(division):
    method = LGA(stages=division)
    simulation = scripted("lga", lambda *_: 0.0, [12, 12])
    server, initial = simulation.runs[0].server, simulation.backend.initial
    stream = torch.Generator().manual_seed(0)
    start, first, last = (
        {name: torch.randn(7, *w.shape, generator=stream).double() for name, w in initial.items()}
        for _ in range(3)
    )
    for reference in (first, {name: 2 * start[name] - last[name] for name in start}, last, start):
        for softened in method._similarity(server, start, reference, last).values():
            assert OPPOSITE - 1e-12 <= softened.min() <= softened.max() <= 0.5 + 1e-12


def test_without_a_change_of_the_global_model_the_similarity_is_that_of_a_right_angle():
    simulation = scripted("lga", lambda *_: 0.0, [12, 12])
    server, initial = simulation.runs[0].server, simulation.backend.initial
    start = {name: w[None] for name, w in initial.items()}
    moved = {name: w[None] + 1 for name, w in initial.items()}
    softened = LGA()._similarity(server, start, start, moved)
    assert softened["head.bias"].item() == pytest.approx(1 / (1 + math.e))
