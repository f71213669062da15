"""pFedHN's hypernetwork and its step."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pfl.testing.synthetic import make_clients
from tests.methods import toy

PLAIN = {"momentum": 0.0, "weight_decay": 0.0}


def hypernetwork(server):
    return {name: tensor.clone() for name, tensor in server.state["hypernetwork"].items()}


def by_modules(state, shapes):
    """The client's models as a network of torch's layers makes them, with its parameters by name."""
    embedding = nn.Parameter(state["embedding"])
    depth = sum(f"{k}.weight" in state for k in range(9))
    layers = {name: nn.Linear(1, 1) for name in (*map(str, range(depth)), *shapes)}
    for name, layer in layers.items():
        layer.weight = nn.Parameter(state[f"{name}.weight"])
        layer.bias = nn.Parameter(state[f"{name}.bias"])
    mlp = [layers["0"]]
    for k in range(1, depth):
        mlp += [nn.ReLU(), layers[str(k)]]
    units = nn.Sequential(*mlp)(embedding)
    named = {"embedding": embedding}
    named |= {f"{n}.{part}": getattr(layers[n], part) for n in layers for part in ("weight", "bias")}
    return {name: layers[name](units).view(-1, *shape) for name, shape in shapes.items()}, named


def test_the_server_steps_along_the_clients_mean_change(dataset, partition):
    hyper = {**PLAIN, "server_lr": 0.5, "clip": 1e9}
    simulation, server = toy.after_rounds("pfedhn", dataset, partition, 0, hyperparameters=hyper)
    shapes = {name: server.store.shape(name) for name in server.groups.trainable}
    models, named = by_modules(hypernetwork(server), shapes)
    simulation.advance()
    present = server.participants
    for name in shapes:
        torch.testing.assert_close(server.received[name], models[name][present].detach())
    changes = [(server.received[name] - server.trained[name]) * models[name][present] for name in shapes]
    (torch.stack([change.sum() for change in changes]).sum() / len(present)).backward()
    for name, parameter in named.items():
        expected = parameter.detach() - 0.5 * parameter.grad
        torch.testing.assert_close(server.state["hypernetwork"][name], expected)


def test_every_client_is_evaluated_with_the_model_that_its_embedding_makes(dataset, partition):
    _, server = toy.after_rounds("pfedhn", dataset, partition, 1)
    shapes = {name: server.store.shape(name) for name in server.groups.trainable}
    models, _ = by_modules(hypernetwork(server), shapes)
    method = server.program.method
    evaluated = method.personal(server, "post_aggregation", slice(1, 3))
    trained = method.personal(server, "post_local")
    for name in shapes:
        torch.testing.assert_close(evaluated[name], models[name][1:3].detach())
        assert torch.equal(trained[name][server.participants], server.trained[name])


def test_without_hidden_units_at_rate_1_it_is_fedavg(dataset):
    equal = make_clients(dataset, [12] * 6)
    hyper = {**PLAIN, "server_lr": 1.0, "clip": 1e9}
    ours, server = toy.after_rounds("pfedhn", dataset, equal, 0, hyperparameters=hyper)
    biases = {f"{name}.bias" for name in server.groups.trainable}
    for name, tensor in server.state["hypernetwork"].items():
        if name not in biases:
            tensor.zero_()
    _, fedavg = toy.after_rounds("fedavg", dataset, equal, 3)
    for _ in range(3):
        ours.advance()
    tensors = server.program.method.personal(server, "post_aggregation")
    for name in fedavg.groups.changing:
        torch.testing.assert_close(tensors[name], fedavg.store[name][:], rtol=0, atol=1e-9)


def test_the_step_is_clipped_and_has_momentum_and_weight_decay(dataset, partition):
    hyper = {"momentum": 0.5, "weight_decay": 0.0, "server_lr": 1.0, "clip": 1e-3}
    simulation, server = toy.after_rounds("pfedhn", dataset, partition, 0, hyperparameters=hyper)
    before = hypernetwork(server)
    simulation.advance()
    first = {name: server.state["hypernetwork"][name] - before[name] for name in before}
    length = torch.stack([change.square().sum() for change in first.values()]).sum().sqrt()
    assert length.item() == pytest.approx(1e-3, rel=1e-4)
    for name, change in first.items():
        torch.testing.assert_close(server.state["velocity"][name], -change, rtol=1e-6, atol=1e-12)

    hyper = {"momentum": 0.0, "weight_decay": 0.25, "server_lr": 1.0, "clip": 1e-6}
    simulation, server = toy.after_rounds("pfedhn", dataset, partition, 0, hyperparameters=hyper)
    before = hypernetwork(server)
    simulation.advance()
    for name, tensor in before.items():
        torch.testing.assert_close(server.state["hypernetwork"][name], 0.75 * tensor, rtol=0, atol=2e-6)
