"""FedDBE: rounds computed in plain torch, its mean feature, and what it shares."""

from __future__ import annotations

import pytest
import torch

from pfl.models import build
from tests.methods import toy
from tests.methods.recomputed import LR, begun, extracted, minibatches, model_of


def test_the_mean_feature_is_fixed_before_the_first_round_and_translations_are_personal(dataset, partition):
    simulation, server = toy.after_rounds("feddbe", dataset, partition, 1)
    mean = server.state["mean"].clone()
    first = server.traffic.total
    assert mean.any()
    simulation.advance()
    assert torch.equal(server.state["mean"], mean)
    assert not server.store.shared("translation.bias")
    assert all(server.store.shared(name) for name in server.groups["model"])
    model, width, present = server.scalars("model"), mean.numel(), len(server.participants)
    assert server.traffic.total == (present * (model + width), present * model)
    assert first[0] - server.traffic.total[0] == server.clients * model  # every client's first training


@pytest.mark.parametrize("m", [0.1, 1.0])
def test_rounds_agree_with_the_authors_rule_computed_in_plain_torch(m, dataset, partition):
    kappa = 2.0
    simulation, server = begun(
        "feddbe", dataset, partition, participation=0.5, epochs=2, hyperparameters={"kappa": kappa, "m": m}
    )
    net = build("lenet5", server.federation.shape, server.federation.classes).double()
    sizes = [len(samples) for samples in server.samples]
    names = [name for name in server.groups.trainable if name != "translation.bias"]
    common = {name: tensor.detach() for name, tensor in model_of(server).items() if name in names}
    width = server.store.shape("translation.bias")[0]
    biases = [torch.zeros(width).double()] * server.clients

    def trained(client, mean):
        """Model, translation and running mean after local training; without a ``mean`` both terms are off."""
        own, bias, running = dict(common), biases[client], torch.zeros(width).double()
        for x, y in 2 * minibatches(server, client):
            leaves = {name: own[name].clone().requires_grad_() for name in names}
            shift = bias.clone().requires_grad_()
            features = extracted(net, leaves, x)
            moved = (1 - m) * running + m * features.mean(0)
            shifted = features if mean is None else features + shift
            logits = shifted @ leaves["head.weight"].T + leaves["head.bias"]
            loss = torch.nn.functional.cross_entropy(logits, y)
            if mean is not None:
                loss = loss + kappa * (0.5 * (moved - mean) ** 2).mean()
            gradients = torch.autograd.grad(loss, [*leaves.values(), shift], allow_unused=True)
            own = {name: own[name] - LR * g for name, g in zip(names, gradients[:-1], strict=True)}
            if mean is not None:
                bias = bias - LR * gradients[-1]
            running = moved.detach()
        return own, bias, running

    means = [trained(client, None)[2] for client in range(server.clients)]
    mean = sum(size * own for size, own in zip(sizes, means, strict=True)) / sum(sizes)
    for _ in range(2):
        simulation.advance()
        torch.testing.assert_close(server.state["mean"][0], mean, rtol=0, atol=1e-12)
        present = server.participants.tolist()
        results = {client: trained(client, mean) for client in present}
        total = sum(sizes[client] for client in present)
        common = {n: sum(sizes[c] / total * results[c][0][n] for c in present) for n in names}
        for client in present:
            biases[client] = results[client][1]
    for name in names:
        torch.testing.assert_close(server.store[name][0], common[name], rtol=0, atol=1e-9)
    for client, bias in enumerate(biases):
        torch.testing.assert_close(server.store["translation.bias"][client], bias, rtol=0, atol=1e-9)
