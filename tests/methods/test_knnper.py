"""kNN-Per's neighbours, by hand."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from pfl.engine.client import Client
from pfl.engine.stacked import StackedBackend
from pfl.methods.knnper import KNNPer
from tests.conftest import CONFIG, simulate
from tests.methods import toy


def accuracies(dataset, partition, method, **hyper):
    config = dataclasses.replace(CONFIG, method=method, hyperparameters=hyper)
    return [client.accuracy for client in simulate(config, dataset, partition, (0,))[0].metrics.per_client]


def test_without_neighbours_it_is_fedavg_and_with_them_alone_it_is_not(dataset, partition):
    fedavg = accuracies(dataset, partition, "fedavg")
    assert accuracies(dataset, partition, "knnper", lam=0.0) == fedavg
    assert accuracies(dataset, partition, "knnper", lam=1.0) != fedavg


def scores(k, lam=1.0, scale=2.0):
    # Stored are a sample of class 0 at distance 1, two of class 1 at distance 2, and an empty place.
    participant = toy.client([[1.0, 0.0], [0.0, 1.0]])
    stored = {
        "store.features": torch.tensor([[1.0, 0.0], [0.0, 2.0], [2.0, 0.0], [0.0, 0.0]]).double(),
        "store.classes": torch.tensor([1.0, 2.0, 2.0, 0.0]).double(),
    }
    client = Client(participant.net, participant.params | stored, participant.start, {})
    x = toy.batch([[0.0, 0.0]], [0]).x
    logits = torch.tensor([[0.0, math.log(3)]], dtype=torch.float64)
    return KNNPer(k=k, lam=lam, scale=scale).scores(client, x, logits)[0].tolist()


def test_neighbours_count_by_their_distance():
    near, far = math.exp(-1 / 4), math.exp(-4 / 4)  # squared distances over d = 2 times the scale 2
    total = near + 2 * far
    assert scores(k=3) == pytest.approx([near / total, 2 * far / total])
    assert scores(k=9) == pytest.approx(scores(k=3))  # an empty place is no neighbour
    assert scores(k=1) == pytest.approx([1.0, 0.0])


def test_scores_are_mixed_with_the_model_s_probabilities():
    assert scores(k=1, lam=0.3) == pytest.approx([0.3 + 0.7 / 4, 0.7 * 3 / 4])


@pytest.mark.parametrize("backend", [None, StackedBackend()])
def test_the_store_holds_the_training_samples_under_the_evaluated_model(backend, dataset, partition):
    simulation, server = toy.after_rounds("knnper", dataset, partition, 1, backend)
    tensors = simulation.program.method.personal(server, "post_aggregation")
    for client, samples in enumerate(partition.train):
        features, labels = toy.features_of(simulation, tensors, client, samples)
        stored = tensors["store.features"][client]
        torch.testing.assert_close(stored[: len(samples)], features)
        assert not stored[len(samples) :].any()
        assert tensors["store.classes"][client, : len(samples)].tolist() == (labels + 1).tolist()
