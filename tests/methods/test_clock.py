"""The straggler clock, and plain averaging on it, through scripted schedules."""

import pytest

from pfl.core.config import Config
from pfl.run.validation import validated, warnings_of
from tests.methods.scripted import history, models, numbers, scripted

CHANGES = [1.0, -2.0, 3.0]  # clients 0 and 1 miss one and two aggregations, client 2 none


def events(schedule, clients, stragglers, rounds):
    """(dispatched, arriving) clients of each round."""
    simulation = scripted(
        "fedavg_async", lambda *_: 0.0, [12] * clients, stragglers=stragglers, schedule=schedule
    )
    method, server = simulation.program.method, simulation.runs[0].server
    observed = []
    for _ in range(rounds):
        simulation.advance()
        observed.append((server.participants.tolist(), method.arrivals(server).tolist()))
    return observed


def test_a_straggler_takes_part_in_one_aggregation_and_misses_its_period():
    assert events("text", clients=3, stragglers=2, rounds=6) == [
        ([0, 1, 2], [2]),
        ([2], [0, 2]),
        ([0, 2], [1, 2]),
        ([1, 2], [0, 2]),
        ([0, 2], [2]),
        ([2], [0, 1, 2]),
    ]


def test_in_the_authors_code_a_punctual_round_follows_each_late_one():
    assert events("code", clients=3, stragglers=2, rounds=5) == [
        ([0, 1, 2], [2]),
        ([2], [0, 2]),
        ([0, 2], [0, 1, 2]),
        ([0, 1, 2], [1, 2]),
        ([1, 2], [0, 2]),
    ]


def test_arrivals_are_as_many_as_the_periods_allow():
    rounds = 25
    arrived = [client for _, arriving in events("text", 6, 4, rounds) for client in arriving]
    assert [arrived.count(k) for k in range(6)] == [rounds // (d + 1) for d in (1, 2, 3, 4, 0, 0)]


def test_one_client_at_least_is_punctual():
    assert events("text", clients=2, stragglers=5, rounds=2) == [([0, 1], [1]), ([1], [0, 1])]


def test_fedavg_async_averages_stale_models_as_they_are():
    simulation = scripted("fedavg_async", CHANGES, [12, 12, 12], stragglers=2)
    observed = [first for first, *_ in history(simulation, 4)]
    # 3; (0 + 1, 3 + 3) / 2; (0 - 2, 3.5 + 3) / 2; (3.5 + 1, 2.25 + 3) / 2
    assert observed == pytest.approx([3, 3.5, 2.25, 4.875])


def test_fedavg_async_weighs_by_size():
    simulation = scripted("fedavg_async", CHANGES, [10, 12, 30], stragglers=1)
    for _ in range(2):
        simulation.advance()
    first = (12 * -2 + 30 * 3) / 42
    assert models(simulation)[0] == pytest.approx((10 * 1 + 12 * (first - 2) + 30 * (first + 3)) / 52)


def test_per_fedavg_of_the_authors_code_takes_two_steps_on_each_batch():
    simulation = scripted("fedavg_async", CHANGES, [12, 12, 12], repeat=2)
    (phase,) = simulation.program.method.phases(simulation.runs[0].server)
    assert phase.repeat == 2


@pytest.mark.parametrize(
    ("schedule", "expected"), [("text", [3, 6, 9, 12]), ("code", [3, 6, (7 + 9) / 2, (6 + 11) / 2])]
)
def test_fedavg_sync_discards_late_models(schedule, expected):
    simulation = scripted("fedavg_sync", CHANGES, [12, 12, 12], stragglers=2, schedule=schedule)
    assert [first for first, *_ in history(simulation, 4)] == pytest.approx(expected)


def test_clients_hold_what_they_trained_last_also_in_flight():
    simulation = scripted("fedavg_async", CHANGES, [12, 12, 12], stragglers=2)
    for _ in range(2):
        simulation.advance()
    server = simulation.runs[0].server
    assert numbers(simulation, server.personal("post_local")) == pytest.approx([1, -2, 6])
    assert numbers(simulation, server.personal("post_aggregation")) == pytest.approx([3.5] * 3)


def test_participation_is_a_warning():
    config = validated(Config(method="lga", participation=0.5))
    assert warnings_of(config) == ("lga: participation is ignored: the straggler clock selects the clients",)
    assert warnings_of(validated(Config(method="lga", participation=1.0))) == ()
