"""FedRoD's two losses, by hand."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from pfl.engine.client import Client
from pfl.methods.fedrod import ABSENT, FedRoD
from tests.methods import toy

PERSONAL = [[0.0, 0.5], [0.5, 0.0]]


def client(prior):
    participant = toy.client([[1.0, 0.0], [0.0, 2.0]])
    participant.net.add_module("personal_head", copy.deepcopy(participant.net.head))
    participant.net.personal_head.load_state_dict(
        {"weight": torch.tensor(PERSONAL, dtype=torch.float64), "bias": torch.zeros(2)}
    )
    tensors = dict(participant.net.named_parameters())
    return Client(participant.net, tensors, tensors, {"prior": torch.tensor(prior, dtype=torch.float64)})


def entropy(logits, y):
    return math.log(sum(math.exp(logit) for logit in logits)) - logits[y]


@toy.with_and_without_padding
def test_the_generic_head_sees_the_class_counts_and_the_personal_one_the_sum(padded):
    batch = toy.batch([[1.0, 1.0]], [0], padded)
    loss = FedRoD(personal_lr=0.3).loss(client([math.log(6), math.log(2)]), batch)
    balanced = entropy([1 + math.log(6), 2 + math.log(2)], 0)
    personal = entropy([1 + 0.5, 2 + 0.5], 0)
    assert loss.item() == pytest.approx(balanced + 0.3 * personal)


def test_the_personal_loss_moves_nothing_but_the_personal_head(dataset, partition):
    def trained(personal_lr):
        own = {"personal_lr": personal_lr}
        return toy.after_rounds("fedrod", dataset, partition, 1, hyperparameters=own)[1]

    idle, eager = trained(0.0), trained(5.0)
    for name in idle.groups["model"]:
        assert torch.equal(idle.uploads[name], eager.uploads[name]), name
    for name in idle.groups["personal_head"]:
        assert torch.equal(idle.uploads[name], idle.received[name])
        assert not torch.equal(idle.uploads[name], eager.uploads[name])


def test_a_class_that_the_client_lacks_has_probability_zero_and_a_finite_loss():
    prior = [math.log(5), math.log(ABSENT)]
    loss = FedRoD(personal_lr=0.0).loss(client(prior), toy.batch([[0.0, 0.0]], [0]))
    assert loss.item() == pytest.approx(0.0, abs=1e-9)


def test_the_evaluated_logits_are_the_sum_of_both_heads_or_the_generic_ones():
    x = toy.batch([[1.0, 1.0]], [0]).x
    assert FedRoD().logits(client([0.0, 0.0]), x)[0].tolist() == pytest.approx([1.5, 2.5])
    assert FedRoD(predicts="generic").logits(client([0.0, 0.0]), x)[0].tolist() == pytest.approx([1.0, 2.0])
