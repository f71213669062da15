"""FedAS's alignment and weights, by hand."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from pfl.engine.client_store import CopyOnWriteTensor
from pfl.methods.fedas import FedAS
from tests.methods import toy


@toy.with_and_without_padding
def test_the_alignment_counts_each_class_of_a_batch_once(padded):
    anchors = torch.tensor([[0.0, 2.0], [7.0, 7.0], [1.0, 0.0]], dtype=torch.float64)
    client = toy.client([[1.0, 0.0], [0.0, 1.0]], {"anchors": anchors})
    loss = FedAS()._align(client, toy.batch([[1.0, 2.0], [3.0, 0.0], [0.0, 0.0]], [2, 2, 0], padded))
    # Mean squared distances are 4/2 and 4/2 for class 2, and 4/2 for class 0.
    assert loss.item() == pytest.approx(2.0 + 2.0)


def test_fisher_traces_add_up_over_batches_and_leave_the_model():
    client = toy.client([[1.0, 0.0], [0.0, 2.0]], {"fisher": torch.tensor(0.25, dtype=torch.float64)})
    client = dataclasses.replace(client, params={n: t.detach() for n, t in client.params.items()})
    batch = toy.batch([[1.0, 1.0], [0.0, 2.0]], [0, 1])
    step = FedAS()._fisher(client, (batch,), 0.1)

    weight = client.params["head.weight"].clone().requires_grad_()
    bias = client.params["head.bias"].clone().requires_grad_()
    loss = torch.nn.functional.cross_entropy(batch.x.flatten(1) @ weight.T + bias, batch.y)
    gradients = torch.autograd.grad(loss, (weight, bias))
    trace = sum(gradient.square().sum().item() for gradient in gradients)
    assert step.state["fisher"].item() == pytest.approx(0.25 + trace)
    assert not step.params


def test_extractors_are_averaged_by_fisher_traces(dataset, partition):
    _, server = toy.after_rounds("fedas", dataset, partition, 2)
    fisher = server.client_state["fisher"][server.participants]
    assert (fisher > 0).all()
    name = "extractor.conv1.weight"
    mean = (fisher.view(-1, 1, 1, 1, 1) * server.trained[name]).sum(0) / fisher.sum()
    torch.testing.assert_close(server.store[name][0], mean)


def test_class_means_take_the_memory_of_the_participants_models(dataset, partition, monkeypatch):
    _, server = toy.after_rounds("fedas", dataset, partition, 2)
    lengths = set()

    def read(stack, clients, original=CopyOnWriteTensor.__getitem__):
        rows = original(stack, clients)
        lengths.add(len(rows))
        return rows

    monkeypatch.setattr(CopyOnWriteTensor, "__getitem__", read)
    FedAS().dispatch(server)
    assert lengths == {len(server.participants)} != {server.clients}
