"""Elastic aggregation's sensitivities and factors, by hand."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from pfl.methods.elastic import Elastic
from pfl.models import build
from tests.methods import toy
from tests.methods.recomputed import LR, begun, first_participants, minibatches, model_of


@toy.with_and_without_padding
def test_a_sensitivity_is_the_decayed_gradient_of_the_logits_mean_square(padded):
    shapes = {"head.weight": (2, 2), "head.bias": (2,)}
    past = {"sensitivity": {name: torch.ones(shape).double() for name, shape in shapes.items()}}
    client = toy.client([[1.0, 0.0], [0.0, -2.0]], past)
    params = {n: t.detach() for n, t in client.params.items()}
    client = dataclasses.replace(client, params=params, trained=tuple(shapes))
    batch = toy.batch([[1.0, 1.0], [3.0, 0.0]], [0, 0], padded)
    step = Elastic(mu=0.75)._measure(client, (batch,), 0.1)

    # The logits z are (1, -2) and (3, 0); the gradients are the sums of 2 z x^T and 2 z, over 2 x 2 logits.
    weight = torch.tensor([[1 + 9, 1 + 0], [2 + 0, 2 + 0]], dtype=torch.float64) / 2
    bias = torch.tensor([1 + 3, 2 + 0], dtype=torch.float64) / 2
    torch.testing.assert_close(step.state["sensitivity"]["head.weight"], 0.75 + 0.25 * weight)
    torch.testing.assert_close(step.state["sensitivity"]["head.bias"], 0.75 + 0.25 * bias)
    assert not step.params


def after_a_round(server, clients):
    """The new global parameters and the factors of their steps, by plain torch from the authors' rule."""
    start = model_of(server)
    names = server.groups.trainable
    net = build("lenet5_bn", server.federation.shape, server.federation.classes).double()
    sizes = {client: len(server.samples[client]) for client in clients}
    omega = {name: torch.zeros_like(start[name]) for name in names}
    change = {name: torch.zeros_like(start[name]) for name in names}
    for client in clients:
        share = sizes[client] / sum(sizes.values())
        own = {name: tensor.detach().clone() for name, tensor in start.items()}
        importance = {name: torch.zeros_like(own[name]) for name in names}

        def gradients(model, x, loss, net=net):
            leaves = {name: model[name].clone().requires_grad_() for name in names}
            statistics = {n: t.clone() for n, t in model.items() if n not in leaves}
            value = loss(torch.func.functional_call(net.train(), {**statistics, **leaves}, (x,)))
            return dict(zip(names, torch.autograd.grad(value, list(leaves.values())), strict=True))

        for x, _ in minibatches(server, client):
            gradient = gradients(own, x, lambda z: torch.nn.functional.mse_loss(z, torch.zeros_like(z)))
            importance = {n: 0.9 * importance[n] + 0.1 * gradient[n].abs() for n in names}
        for x, y in minibatches(server, client):
            gradient = gradients(own, x, lambda z, y=y: torch.nn.functional.cross_entropy(z, y))
            own.update({n: own[n] - LR * gradient[n] for n in names})
        for name in names:
            omega[name] += share * importance[name]
            change[name] += share * (own[name] - start[name].detach())
    factors = {name: 1.5 - omega[name] / omega[name].max() for name in names}
    return {name: start[name].detach() + factors[name] * change[name] for name in names}, factors


@pytest.mark.parametrize("participation", [0.5, 1.0])
def test_a_round_agrees_with_the_authors_rule_computed_in_plain_torch(participation, dataset, partition):
    simulation, server = begun("elastic", dataset, partition, model="lenet5_bn", participation=participation)
    clients = first_participants(server)
    expected, _ = after_a_round(server, clients)
    simulation.advance()
    assert server.participants.tolist() == clients
    for name, tensor in expected.items():
        torch.testing.assert_close(server.store[name][0], tensor, rtol=0, atol=1e-12)


def test_with_one_participant_the_factors_reach_from_tau_to_1_plus_tau(dataset, partition):
    simulation, server = begun("elastic", dataset, partition, model="lenet5_bn", participation=1 / 6)
    clients = first_participants(server)
    assert len(clients) == 1
    expected, factors = after_a_round(server, clients)
    for factor in factors.values():
        assert factor.min().item() == pytest.approx(0.5)
        assert factor.max() <= 1.5
    every = torch.cat([factor.flatten() for factor in factors.values()])
    assert every.max() > 1.49
    assert 1.1 < every.mean() < 1.5
    simulation.advance()
    for name, tensor in expected.items():
        torch.testing.assert_close(server.store[name][0], tensor, rtol=0, atol=1e-12)


def test_measuring_leaves_the_model_and_its_statistics(dataset, partition):
    _, server = begun("elastic", dataset, partition, model="lenet5_bn")
    measure, _ = server.program.method.phases(server)
    before = {name: server.store[name].clone() for name in server.groups["all"]}
    trained = server.train("measuring", server.client_ids, before, (measure,))
    assert all(torch.equal(trained.tensors[name], tensor) for name, tensor in before.items())
    assert trained.state["sensitivity"]["head.weight"].any()


def test_the_sensitivities_are_sent_beside_the_model(dataset, partition):
    _, server = toy.after_rounds("elastic", dataset, partition, 1)
    model, present = server.scalars("all"), len(server.participants)
    parameters = server.scalars(*server.groups.trainable)
    assert server.traffic.total == (present * model, present * (model + parameters))
