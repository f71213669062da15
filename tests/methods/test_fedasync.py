"""FedAsync's staleness functions and its three ways of blending arrivals in."""

import pytest
import torch

from pfl.methods.fedasync import FedAsync
from tests.methods.scripted import history, scripted

STALENESS = torch.tensor([0.0, 1.0, 3.0, 8.0], dtype=torch.float64)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (FedAsync(staleness="constant"), [1, 1, 1, 1]),
        (FedAsync(staleness="polynomial", a=0.5), [1, 2**-0.5, 1 / 2, 1 / 3]),
        (FedAsync(staleness="hinge", a=10.0, b=2), [1, 1, 1 / 11, 1 / 61]),
    ],
)
def test_the_weight_of_an_arrival_falls_with_its_staleness(method, expected):
    assert method._decay(STALENESS).tolist() == pytest.approx(expected)


def after_three_rounds(sizes, **hyper):
    """Clients 0 and 1 add 1 and -2 and miss one and two aggregations; client 2 adds 3."""
    simulation = scripted("fedasync", [1.0, -2.0, 3.0], sizes, stragglers=2, **hyper)
    return [first for first, *_ in history(simulation, 3)]


def test_arrivals_are_blended_in_one_by_one_the_stalest_first():
    alpha, late = 0.6, 0.6 * 2**-0.5
    first = alpha * 3
    second = (1 - late) * first + late * 1
    second = (1 - alpha) * second + alpha * (first + 3)
    later = 0.6 * 3**-0.5
    third = (1 - later) * second + later * -2
    third = (1 - alpha) * third + alpha * (second + 3)
    # Sizes do not count.
    assert after_three_rounds([8, 12, 30], staleness="polynomial", a=0.5) == pytest.approx(
        [first, second, third]
    )


def test_in_a_batch_arrivals_are_blended_in_at_once():
    first = 0.5 * 3
    second = 0.5 * first + 0.5 * (1 + first + 3) / 2
    assert after_three_rounds([12] * 3, blend="batch", alpha=0.5, staleness="constant")[:2] == pytest.approx(
        [first, second]
    )


def test_in_the_code_of_plga_late_clients_blend_and_the_server_averages():
    late = 0.8 * 2**-0.5
    first = 3
    second = (late * 1 + (1 - late) * first + first + 3) / 2
    assert after_three_rounds([12] * 3, blend="client", alpha=0.8, rho=0.0)[:2] == pytest.approx(
        [first, second]
    )


def test_punctual_clients_come_in_another_order_every_round():
    simulation = scripted("fedasync", lambda *_: 0.0, [12] * 6, stragglers=2)
    server = simulation.runs[0].server
    orders = []
    for _ in range(6):
        simulation.advance()
        arrivals, staleness = simulation.program.method._in_order(server)
        orders.append([client for client, age in zip(arrivals.tolist(), staleness, strict=True) if not age])
        assert staleness.tolist() == sorted(staleness.tolist(), reverse=True)
    assert all(sorted(order) == [2, 3, 4, 5] for order in orders)
    assert len({tuple(order) for order in orders}) > 1
