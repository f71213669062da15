"""Elastic aggregation's sensitivities and factors, by hand."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from pfl.methods.elastic import Elastic
from tests.methods import toy
from tests.methods.curves import assert_apart, assert_same, curve


def test_without_sensitivities_and_with_tau_0_it_is_fedavg(dataset, partition):
    # In this order the batches of a sensitivity do not change those of the training after it.
    order = {"batch_order": "fixed"}
    plain = curve(dataset, partition, "elastic", {"mu": 1.0, "tau": 0.0}, **order)
    assert_same(plain, curve(dataset, partition, "fedavg", **order))
    assert_apart(curve(dataset, partition, "elastic", **order), plain)


@pytest.mark.parametrize("rows", [None, [1, 1, 0]])
def test_a_sensitivity_is_the_decayed_gradient_of_the_logits_squared_norm(rows):
    shapes = {"head.weight": (2, 2), "head.bias": (2,)}
    past = {f"sensitivity.{name}": torch.ones(shape).double() for name, shape in shapes.items()}
    client = toy.client([[1.0, 0.0], [0.0, -2.0]], past)
    client = dataclasses.replace(client, params={n: t.detach() for n, t in client.params.items()})
    pixels, labels = [[1.0, 1.0], [3.0, 0.0]], [0, 0]
    if rows:
        pixels, labels = [*pixels, [5.0, 5.0]], [*labels, 1]
    step = Elastic(mu=0.75)._measure(client, (toy.batch(pixels, labels, rows),), 0.1)

    # The logits z are (1, -2) and (3, 0); the gradients are the means of 2 z x^T and 2 z.
    weight = torch.tensor([[1 + 9, 1 + 0], [2 + 0, 2 + 0]], dtype=torch.float64)
    bias = torch.tensor([1 + 3, 2 + 0], dtype=torch.float64)
    torch.testing.assert_close(step.state["sensitivity.head.weight"], 0.75 + 0.25 * weight)
    torch.testing.assert_close(step.state["sensitivity.head.bias"], 0.75 + 0.25 * bias)
    assert not step.params


def test_a_step_is_scaled_by_the_mean_sensitivity_over_the_largest(dataset, partition):
    _, server = toy.after_rounds("elastic", dataset, partition, 1)
    present, name = server.participants, "extractor.conv1.weight"
    sensitivity = server.client_state[f"sensitivity.{name}"]
    assert (sensitivity[present] > 0).any()
    absent = [client for client in range(server.clients) if client not in present.tolist()]
    assert not sensitivity[absent].any()

    shares = (server.sizes[present] / server.sizes[present].sum()).view(-1, 1, 1, 1, 1)
    mean, largest = (shares * sensitivity[present]).sum(0), sensitivity[present].max(0).values
    step = (shares * (server.trained[name] - server.received[name])).sum(0)
    expected = server.received[name][0] + (1.5 - mean / largest) * step
    torch.testing.assert_close(server.bank[name][0], expected)


def test_the_sensitivities_are_sent_beside_the_model(dataset, partition):
    _, server = toy.after_rounds("elastic", dataset, partition, 1)
    model, present = server.scalars("all"), len(server.participants)
    parameters = server.scalars(*server.groups.trainable)
    assert server.traffic.total == (present * model, present * (model + parameters))
