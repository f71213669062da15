"""FedDBE's loss and running mean, by hand; what it shares."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from pfl.methods.feddbe import FedDBE
from tests.methods import toy


def client():
    """Features are pixels; the translation moves them by (0.5, 0)."""
    one = toy.client([[1.0, 0.0], [0.0, 2.0]])
    tensors = {name: tensor.detach() for name, tensor in one.params.items()}
    net = FedDBE().client_network(one.net, None).double()
    tensors["translation.bias"] = torch.tensor([0.5, 0.0], dtype=torch.float64)
    state = {"running": torch.tensor([2.0, 4.0]).double(), "mean": torch.tensor([1.0, 1.0]).double()}
    return dataclasses.replace(
        one, net=net, params=tensors, start=tensors, state=state, trained=tuple(tensors)
    )


@pytest.mark.parametrize("rows", [None, [1, 1, 0]])
def test_the_loss_translates_the_features_and_holds_their_running_mean(rows):
    pixels, labels = [[1.0, 1.0], [3.0, 1.0]], [0, 0]
    if rows:
        pixels, labels = [*pixels, [9.0, 9.0]], [*labels, 1]
    batch = toy.batch(pixels, labels, rows)
    step = FedDBE(kappa=3.0, m=0.25)._step(client(), (batch,), 0.1)

    entropies = [math.log(math.exp(x + 0.5) + math.exp(2.0)) - (x + 0.5) for x in (1.0, 3.0)]
    running = [0.75 * 2 + 0.25 * 2, 0.75 * 4 + 0.25 * 1]
    apart = sum((r - 1) ** 2 for r in running) / 2
    assert step.state["running"].tolist() == pytest.approx(running)
    assert step.loss.item() == pytest.approx(sum(entropies) / 2 + 1.5 * apart)


def test_the_step_descends_on_the_loss():
    one, batch = client(), toy.batch([[1.0, 1.0]], [0])
    step = FedDBE()._step(one, (batch,), 0.1)
    gradient, _ = one.gradient(FedDBE().loss, batch)
    for name, tensor in step.params.items():
        torch.testing.assert_close(tensor, one.params[name] - 0.1 * gradient[name])
    assert gradient["translation.bias"].any()


def test_the_mean_feature_is_fixed_before_the_first_round_and_translations_are_personal(dataset, partition):
    simulation, server = toy.after_rounds("feddbe", dataset, partition, 1)
    mean = server.state["mean"].clone()
    first = server.traffic.total
    assert mean.any()
    simulation.advance()
    assert torch.equal(server.state["mean"], mean)
    assert not server.bank.shared("translation.bias")
    assert all(server.bank.shared(name) for name in server.groups["model"])
    model, width, present = server.scalars("model"), mean.numel(), len(server.participants)
    assert server.traffic.total == (present * (model + width), present * model)
    assert first[0] - server.traffic.total[0] == server.clients * model  # every client's first training
