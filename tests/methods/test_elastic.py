"""Elastic aggregation: rounds computed in plain torch."""

from __future__ import annotations

import pytest
import torch

from pfl.models import build
from tests.methods.recomputed import LR, begun, first_participants, minibatches, model_of


def after_a_round(server, clients):
    """The new global parameters, by plain torch from the authors' rule."""
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
    return {name: start[name].detach() + factors[name] * change[name] for name in names}


@pytest.mark.parametrize("participation", [1 / 6, 0.5, 1.0])
def test_a_round_agrees_with_the_authors_rule_computed_in_plain_torch(participation, dataset, partition):
    simulation, server = begun("elastic", dataset, partition, model="lenet5_bn", participation=participation)
    clients = first_participants(server)
    expected = after_a_round(server, clients)
    simulation.advance()
    assert server.participants.tolist() == clients
    for name, tensor in expected.items():
        torch.testing.assert_close(server.store[name][0], tensor, rtol=0, atol=1e-12)
