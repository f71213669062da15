"""Class means of features, FedProto's loss and rule, and the header that FedGH trains on them."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from pfl.core.config import Config
from pfl.engine.loop import LoopBackend
from pfl.engine.stacked import StackedBackend
from pfl.methods._prototypes import class_means
from pfl.methods.fedgh import FedGH
from pfl.methods.fedproto import FedProto
from tests.methods.toy import after_rounds, batch, client, features_of, with_and_without_padding


@pytest.mark.parametrize("backend", [LoopBackend, StackedBackend])
def test_class_means_are_the_means_of_a_class_s_features(backend, dataset, partition):
    simulation, server = after_rounds("fedproto", dataset, partition, 1, backend())
    means, squares = class_means(server, server.trained)

    for k, number in enumerate(server.participants.tolist()):
        features, y = features_of(simulation, server.trained, k, server.samples[number])
        for c in range(len(dataset.classes)):
            expected = features[y == c].mean(0) if (y == c).any() else torch.zeros(84)
            torch.testing.assert_close(means[k, c], expected.double(), rtol=0, atol=1e-10)
        assert squares[k] == pytest.approx(float(features.square().sum(1).mean()))


# Class 0 has the prototype (3, 0), class 1 none.
PROTOTYPES = {
    "prototypes__means": torch.tensor([[3.0, 0.0], [0.0, 0.0]], dtype=torch.float64),
    "prototypes__known": torch.tensor([1.0, 0.0], dtype=torch.float64),
}


@with_and_without_padding
def test_fedproto_adds_the_mean_square_to_known_prototypes(padded):
    minibatch = batch([[1.0, 0.0], [5.0, 5.0]], [0, 1], padded)
    indifferent = client([[0.0, 0.0], [0.0, 0.0]], **PROTOTYPES)

    # (1 - 3)^2 over two coordinates is 2; the sample of class 1 adds 0, so the mean over samples is 1.
    assert FedProto(lam=0.5).loss(indifferent, minibatch).item() == pytest.approx(math.log(2) + 0.5 * 1)


def test_fedproto_predicts_by_the_nearest_prototype_of_the_client_s_own_classes():
    means = torch.tensor([[0.0, 0.0], [4.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    known = torch.tensor([1.0, 1.0, 1.0], dtype=torch.float64)
    state = {"owned": torch.tensor([True, True, False])}
    participant = client([[0.0, 0.0]] * 3, state, prototypes__means=means, prototypes__known=known)
    x = batch([[1.1, 0.0], [2.1, 7.0]], [0, 0]).x
    logits = torch.tensor([[0.0, 0.0, 1.0]] * 2, dtype=torch.float64)

    def classes(predicts):
        return FedProto(predicts=predicts).scores(participant, x, logits).argmax(1).tolist()

    assert classes("own_classes") == [0, 1]
    assert classes("known_classes") == [2, 2]
    assert classes("head") == [2, 2]


def test_fedproto_predicts_by_the_head_until_a_class_of_the_client_has_a_prototype():
    state = {"owned": torch.tensor([False, True])}
    participant = client([[0.0, 0.0]] * 2, state, **PROTOTYPES)
    logits = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    assert torch.equal(FedProto().scores(participant, batch([[3.0, 0.0]], [0]).x, logits), logits)


def test_fedproto_sends_known_prototypes_takes_plain_means_over_owners_and_keeps_the_rest(dataset, partition):
    _, server = after_rounds("fedproto", dataset, partition, 0)
    held = torch.full((4, 84), 7.0, dtype=torch.float64)
    server.participants = torch.tensor([0, 1])  # of classes 0, 1 and 1, 2; nobody brings class 3
    server.received = {
        "prototypes.means": held.expand(2, 4, 84),
        "prototypes.known": torch.tensor([[0.0, 0, 0, 1]] * 2, dtype=torch.float64),
    }
    server.trained = server.store.rows(server.participants)
    means, _ = class_means(server, server.trained)
    mixing = FedProto().aggregate(server)
    new = mixing["prototypes.means"][0]

    torch.testing.assert_close(new[0], means[0, 0])
    torch.testing.assert_close(new[1], (means[0, 1] + means[1, 1]) / 2)
    torch.testing.assert_close(new[2], means[1, 2])
    torch.testing.assert_close(new[3], held[3])
    assert mixing["prototypes.known"].tolist() == [[1, 1, 1, 1]]
    # Down one prototype for each of both, up two of each.
    assert server.traffic.total == (2 * 84, 4 * 84)


def test_fedproto_gives_absent_clients_the_newest_prototypes(dataset, partition):
    _, server = after_rounds("fedproto", dataset, partition, 3, participation=0.2)
    newest = server.personal("post_aggregation")["prototypes.means"]
    assert torch.equal(newest, newest[:1].expand_as(newest))
    assert newest.any()


def test_fedgh_trains_the_header_by_sgd_on_class_means():
    points = torch.tensor([[1.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
    header = [torch.zeros(2, 2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)]
    server = SimpleNamespace(config=Config(lr=0.1, batch_size=2), seed=0, round=1)
    FedGH(server_lr=4.0)._train(server, header, points, torch.tensor([0, 1]))

    # All probabilities are 1/2, so the gradient for the class of a point is -1/2 of it, over two points.
    rate = 0.4 / 2 / 2
    assert header[0].flatten().tolist() == pytest.approx([rate, -2 * rate, -rate, 2 * rate])
    assert header[1].tolist() == pytest.approx([0.0, 0.0])


def test_fedgh_gives_everybody_the_header_and_keeps_each_trained_head(dataset, partition):
    _, server = after_rounds("fedgh", dataset, partition, 1)
    fresh = server.personal("post_aggregation")["head.weight"]
    own = server.personal("post_local")["head.weight"]
    absent = sorted(set(range(6)) - set(server.participants.tolist()))

    assert torch.equal(fresh, fresh[:1].expand_as(fresh))
    assert torch.equal(own[server.participants], server.uploads["head.weight"])
    assert torch.equal(own[absent], server.received["head.weight"])  # as initialised
    assert not torch.equal(fresh[0], server.received["head.weight"][0])
    extractor = server.groups["extractor"][0]
    assert torch.equal(server.store[extractor][server.participants], server.uploads[extractor])
