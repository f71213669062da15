"""FedPHP's historical models, by hand."""

from __future__ import annotations

import dataclasses
import math
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from pfl.engine.client import Client
from pfl.methods.fedphp import TEMPERATURE, FedPHP, _widths
from tests.methods import toy
from tests.methods.scripted import numbers, scripted


def test_the_weight_of_the_past_grows_with_every_training():
    simulation = scripted("fedphp", [1.0, 2.0, 3.0, 4.0], [6, 12, 6, 8], participation=0.5)
    server = simulation.runs[0].server
    server.config = dataclasses.replace(server.config, rounds=4)  # each client is expected to train twice
    history, trainings, model = [0.0] * 4, [0] * 4, 0.0
    for _ in range(5):
        simulation.advance()
        present = server.participants.tolist()
        trained = {client: model + client + 1.0 for client in present}
        for client in present:
            mu = 0.9 * min(trainings[client] / 2, 1)
            history[client] = mu * history[client] + (1 - mu) * trained[client]
            trainings[client] += 1
        sizes = server.sizes[present].tolist()
        model = sum(size * trained[client] for client, size in zip(present, sizes, strict=True)) / sum(sizes)
        stored = {name: server.client_state["history"][name] for name in server.groups.trainable}
        assert numbers(simulation, stored) == pytest.approx(history)


@toy.with_and_without_padding
def test_the_client_learns_from_the_historical_model_s_probabilities(padded):
    participant = toy.client([[1.0, 0.0], [0.0, 2.0]])
    history = {
        "head.weight": torch.tensor([[4.0, 0.0], [0.0, 8.0]], dtype=torch.float64),
        "head.bias": torch.zeros(2, dtype=torch.float64),
    }
    client = Client(participant.net, participant.params, participant.start, {"history": history})
    loss = FedPHP(lam=0.3).loss(client, toy.batch([[1.0, 1.0]], [0], padded))

    def log_softmax(logits):
        total = math.log(sum(map(math.exp, logits)))
        return [logit - total for logit in logits]

    own = log_softmax([1.0, 2.0])
    teacher = [math.exp(p) for p in log_softmax([4 / TEMPERATURE, 8 / TEMPERATURE])]
    distilled = -sum(p * q for p, q in zip(teacher, own, strict=True))
    assert loss.item() == pytest.approx(0.7 * -own[0] + 0.3 * distilled)


@toy.with_and_without_padding
def test_the_client_may_learn_by_the_discrepancy_of_the_features(padded):
    own, past = [[1.0, 0.0], [0.0, 2.0]], [[0.0, 0.0], [3.0, 1.0]]

    class Features:
        """A network whose features are given."""

        def __init__(self, features):
            self.features = lambda _: torch.tensor(features + [[9.0, 9.0]] * padded).double()
            self.head = lambda features: features

    @contextmanager
    def other(_):
        yield Features(past)

    client = SimpleNamespace(net=Features(own), other=other, state={"history": {}})
    batch = toy.batch([[0.0, 0.0]] * 2, [0, 1], padded)
    loss = FedPHP(lam=0.3, transfer="mmd").loss(client, batch)

    def square(a, b):
        return sum((p - q) ** 2 for p, q in zip(a, b, strict=True))

    every = own + past
    bandwidth = sum(square(a, b) for a in every for b in every) / (4**2 - 4) + 1e-8

    def kernel(a, b):
        return sum(math.exp(-square(a, b) / (bandwidth / 4 * 2**i)) for i in range(5))

    def mean(first, second):
        return sum(kernel(a, b) for a in first for b in second) / 4

    entropy = [math.log(1 + math.exp(-1.0)), math.log(1 + math.exp(-2.0))]
    expected = 0.7 * sum(entropy) / 2 + 0.3 * (mean(own, own) + mean(past, past) - 2 * mean(own, past))
    assert loss.item() == pytest.approx(expected)


def test_the_discrepancy_passes_no_gradient_to_its_kernels_widths():
    features = torch.tensor([[1.0, 0.0], [0.0, 2.0]], dtype=torch.float64, requires_grad=True)
    past = torch.tensor([[0.0, 0.0], [3.0, 1.0]], dtype=torch.float64)
    assert not any(width.requires_grad for width in _widths(toy.batch([[0.0]] * 2, [0, 1]), features, past))
