"""GPFL: rounds computed in plain torch, and the context of a prediction."""

from __future__ import annotations

import pytest
import torch

from pfl.core.config import Config
from pfl.engine.client import Client
from pfl.methods.gpfl import GPFL
from pfl.models import build
from pfl.run.validation import validated, warnings_of
from tests.methods import toy
from tests.methods.recomputed import LR, begun, extracted, minibatches, model_of


def client():
    """With valves that leave features as they are: no scale and no shift."""
    net = GPFL().client_network(toy.client([[1.0, 0.0], [0.0, 2.0]]).net, None).double()
    with torch.no_grad():
        net.embedding.weight.copy_(torch.tensor([[3.0, 4.0], [1.0, 0.0]]))
        for parameter in net.valve.parameters():
            parameter.zero_()
    tensors = dict(net.named_parameters())
    state = {
        "shares": torch.tensor([0.25, 0.75], dtype=torch.float64),
        "context_all": torch.zeros(2, dtype=torch.float64),
        "context_own": torch.tensor([2.0, 5.0], dtype=torch.float64),
    }
    return Client(net, tensors, tensors, state, tuple(tensors))


def test_the_context_of_prediction_is_the_client_s_mean_embedding():
    participant = client()
    with torch.no_grad():  # the shift is the layer norm's bias, plus its weight times the normalised context
        participant.net.valve["shift"][0].weight.copy_(torch.eye(2))
        participant.net.valve["shift"][2].weight.fill_(1.0)
    context = participant.state["context_own"]
    shift = (context - context.mean()) / (context.var(unbiased=False) + 1e-5).sqrt()
    features = (torch.tensor([1.0, 1.0]).double() + shift).relu()
    logits = GPFL().logits(participant, toy.batch([[1.0, 1.0]], [0]).x)[0]
    assert logits.tolist() == pytest.approx([features[0].item(), 2 * features[1].item()])


def valve(tensors, features, context):
    """V(f, c), from the stored tensors."""

    def branch(name):
        weight, bias = tensors[f"valve.{name}.0.weight"], tensors[f"valve.{name}.0.bias"]
        hidden = (weight @ context + bias).clamp(min=0)
        centred = hidden - hidden.mean()
        normal = centred / (centred.square().mean() + 1e-5).sqrt()
        return tensors[f"valve.{name}.2.weight"] * normal + tensors[f"valve.{name}.2.bias"]

    return (features * (branch("scale") + 1) + branch("shift")).clamp(min=0)


def test_rounds_agree_with_the_authors_rule_computed_in_plain_torch(dataset, partition):
    lam, mu = 0.01, 0.1
    simulation, server = begun("gpfl", dataset, partition, participation=0.5)
    net = build("lenet5", server.federation.shape, server.federation.classes).double()
    clients, classes, names = server.clients, server.federation.classes, server.groups.trainable
    common = {name: tensor.detach() for name, tensor in model_of(server).items()}
    heads = [{n: common[n] for n in names if n.startswith("head.")} for _ in range(clients)]
    width = common["embedding.weight"].shape[1]
    contexts = [(torch.zeros(width).double(), torch.zeros(width).double())] * clients
    shares = []
    for client in range(clients):
        labels = torch.from_numpy(dataset.labels[server.samples[client]])
        shares.append(torch.bincount(labels, minlength=classes).double() / len(labels))
    for _ in range(3):
        simulation.advance()
        present = server.participants.tolist()
        held = [common["embedding.weight"]] * clients
        total = sum(len(server.samples[client]) for client in present)
        mean = {name: torch.zeros_like(common[name]) for name in names if name not in heads[0]}
        for client in present:
            own = {**common, **heads[client]}
            everyone, mine = contexts[client]
            for x, y in minibatches(server, client):
                leaves = {name: own[name].clone().requires_grad_() for name in names}
                features = extracted(net, leaves, x)
                logits = valve(leaves, features, mine) @ leaves["head.weight"].T + leaves["head.bias"]
                generic = valve(leaves, features, everyone)
                embedding = leaves["embedding.weight"]
                cosines = (generic @ embedding.T) / generic.norm(dim=1)[:, None] / embedding.norm(dim=1)
                entropy = torch.nn.functional.cross_entropy
                loss = entropy(logits, y) + entropy(cosines, y)
                loss = loss + lam * torch.norm(generic - common["embedding.weight"][y], 2)
                gradients = torch.autograd.grad(loss, list(leaves.values()))
                for name, gradient in zip(names, gradients, strict=True):
                    decay = mu if name.startswith(("embedding.", "valve.")) else 0.0
                    own[name] = own[name] - LR * (gradient + decay * own[name])
            heads[client] = {name: own[name] for name in heads[client]}
            held[client] = own["embedding.weight"]
            share = len(server.samples[client]) / total
            mean = {name: tensor + share * own[name] for name, tensor in mean.items()}
        # All clients receive the mean; their contexts come from what they had before.
        contexts = [(own.mean(0), shares[client] @ own) for client, own in enumerate(held)]
        common.update(mean)
    for name, tensor in mean.items():
        torch.testing.assert_close(server.store[name][0], tensor, rtol=0, atol=1e-9)
    for client in range(clients):
        everyone, mine = contexts[client]
        torch.testing.assert_close(server.client_state["context_all"][client], everyone, rtol=0, atol=1e-9)
        torch.testing.assert_close(server.client_state["context_own"][client], mine, rtol=0, atol=1e-9)
        own = server.store["head.weight"][client]
        torch.testing.assert_close(own, heads[client]["head.weight"], rtol=0, atol=1e-9)


def test_the_defaults_are_the_authors_for_a_cnn_and_a_resnet_is_told_its_own():
    assert (GPFL.lam, GPFL.mu) == (0.01, 0.1)
    assert warnings_of(validated(Config(method="gpfl", model="lenet5"))) == ()
    (line,) = warnings_of(validated(Config(method="gpfl", model="resnet18_cifar")))
    assert "lam=0.0001, mu=0" in line
    pinned = {"lam": 0.0001, "mu": 0.0}
    assert warnings_of(validated(Config(method="gpfl", model="resnet18_cifar", hyperparameters=pinned))) == ()


def test_a_search_reaches_every_setting_of_the_authors_that_a_logarithm_has():
    authors = {"lam": (0.0001, 0.01), "mu": (0.1, 1.0)}
    for name, values in authors.items():
        low, high = GPFL.declarations()[name].search
        assert all(low <= value <= high for value in values), name
