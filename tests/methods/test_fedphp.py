"""FedPHP's historical models, by hand."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from pfl.engine.client import Client
from pfl.methods.fedphp import TEMPERATURE, FedPHP
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
