"""What the engine counts as traffic, and what a method states itself."""

from __future__ import annotations

import pytest
import torch

from pfl.core.errors import InvalidInput
from pfl.engine.mixing import Average, Dense, Identity, Sent
from pfl.engine.round import aggregate, dispatch
from pfl.engine.traffic import Traffic
from tests.methods.toy import after_rounds

PRESENT = 2


@pytest.fixture
def server(dataset, partition):
    """Clients 1 and 4 take part in a round of which nothing has happened yet."""
    _, server = after_rounds("local", dataset, partition, 0)
    server.round, server.participants = 1, torch.tensor([1, 4])
    return server


def trained(server):
    """After a dispatch without mixing and a training that moves nothing."""
    dispatch(server, {})
    server.trained = server.received
    return server


def test_what_is_personal_does_not_travel(server):
    aggregate(trained(server), {})
    assert server.traffic.total == (0, 0)


def test_what_is_mixed_goes_up_and_down_once_a_round(server):
    rows = torch.full((PRESENT, 6), 1 / 6)
    dispatch(server, {"extractor": Dense(rows)})
    server.trained = server.received
    aggregate(server, {"extractor": Average(torch.tensor([0.5, 0.5]))})
    size = PRESENT * server.scalars("extractor")
    assert server.traffic.total == (size, size)


def test_clients_that_mix_for_themselves_receive_every_model_that_they_mix(server):
    dispatch(server, {"head": Dense(torch.full((PRESENT, 6), 1 / 6), downloads=7)})
    head = server.scalars("head")
    assert server.traffic.total == (7 * head, PRESENT * head)


def test_an_average_over_other_clients_counts_their_uploads(server):
    aggregate(trained(server), {"head": Average(torch.full((3,), 1 / 3), sources=torch.tensor([0, 1, 2]))})
    head = server.scalars("head")
    assert server.traffic.total == (PRESENT * head, 3 * head)


def test_what_the_server_sends_goes_down_and_what_it_reads_up(server):
    nested = {"weight": torch.zeros(1, 3), "bias": torch.zeros(1, 1)}
    dispatch(server, {"own": Sent(torch.zeros(PRESENT, 5)), "common": Sent(nested)})
    server.trained = server.received
    assert server.traffic.total == (PRESENT * (5 + 3 + 1), 0)
    for _ in range(2):
        bias = server.uploads["head.bias"]
    assert server.traffic.total == (PRESENT * (5 + 3 + 1), bias.numel())


@pytest.mark.parametrize("value", [torch.zeros(1, 4), {"weight": torch.zeros(1, 4)}])
def test_a_new_name_is_sent_only_where_the_dispatch_says_so(server, value):
    with pytest.raises(InvalidInput, match=r"^\w+\.dispatch: haed is not accepted.* Sent\(\.\.\.\)"):
        dispatch(server, {"haed": value})


@pytest.mark.parametrize("name", ["head", "head.bias", "counts"])
def test_what_is_sent_hides_neither_a_tensor_of_the_client_nor_its_state(server, name):
    server.client_state["counts"] = torch.zeros(6)
    with pytest.raises(InvalidInput, match=rf"^\w+\.dispatch: Sent name: {name} is not accepted"):
        dispatch(server, {name: Sent(torch.zeros(1, 4))})


def test_nothing_is_sent_after_training(server):
    with pytest.raises(InvalidInput, match=r"^\w+\.aggregate: head.\w+: a value of type Sent is not"):
        aggregate(trained(server), {"head": Sent(torch.zeros(1, 4))})


def test_what_the_server_computes_for_everybody_goes_down_and_is_stored(server):
    value = torch.arange(4.0, dtype=torch.float64)[None]
    aggregate(trained(server), {"head.bias": value})
    assert server.traffic.total == (PRESENT * 4, 0)
    assert torch.equal(server.store["head.bias"], value.expand(6, 4))


def test_a_sent_tensor_of_a_client_s_own_name_is_what_it_starts_from(server):
    dispatch(server, {"head.bias": torch.tensor([[1.0] * 4, [2.0] * 4])})
    assert server.received["head.bias"].tolist() == [[1.0] * 4, [2.0] * 4]
    assert not server.sent


def test_a_sum_of_mixings_counts_a_tensor_once(server):
    average = Average(torch.tensor([0.5, 0.5]))
    everybody = Average(torch.full((6,), 1 / 6), sources=torch.arange(6))
    aggregate(trained(server), {"head": 0.5 * average + 0.25 * everybody + 0.25 * Identity()})
    assert server.traffic.total == (PRESENT * server.scalars("head"), 6 * server.scalars("head"))


def test_what_a_method_overrides_replaces_what_was_counted():
    traffic = Traffic()
    traffic.add("flags", down=10)
    traffic.add("model", down=3, up=4)
    traffic.override("flags", 0, 0)
    traffic.override("masks", 0, 7)
    assert traffic.total == (3, 11)
