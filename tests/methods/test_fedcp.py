"""FedCP's policy, loss and heads, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from pfl.engine.client import Client
from pfl.methods.fedcp import WIDTHS, FedCP, _discrepancy
from tests.methods import toy

HEAD, SHARED = [[1.0, 0.0], [0.0, 2.0]], [[4.0, 0.0], [0.0, 1.0]]


def client(policy):
    """Features are pixels; ``policy`` maps a context (2,) to scores (4,)."""
    net = FedCP().client_network(toy.client(HEAD).net, None).double()
    net.add_module("policy", policy.double())
    with torch.no_grad():
        net.shared_head.weight.copy_(torch.tensor(SHARED))
    tensors = {name: tensor.detach() for name, tensor in net.named_parameters()}
    return Client(net, tensors, tensors, {})


def linear(weight, bias):
    policy = torch.nn.Linear(2, 4).double()
    policy.load_state_dict({"weight": torch.tensor(weight), "bias": torch.tensor(bias)})
    return policy


def logistic(score):
    return 1 / (1 + math.exp(-score))


def test_the_policy_sees_the_features_times_the_head_s_summed_and_normalised_weights():
    participant = client(linear([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [0.0, 0.0]], [0.0] * 4))
    logits = FedCP().logits(participant, toy.batch([[3.0, 5.0]], [0]).x)[0]
    length = math.hypot(1, 2)
    s = logistic(3 * 1 / length), logistic(5 * 2 / length)
    assert logits.tolist() == pytest.approx([s[0] * 3 + 4 * (1 - s[0]) * 3, 2 * s[1] * 5 + (1 - s[1]) * 5])


@toy.with_and_without_padding
def test_the_loss_adds_gumbel_noise_to_the_scores(padded):
    participant = client(linear([[0.0, 0.0]] * 4, [0.5, 0.0, 0.0, 0.0]))
    noise = torch.tensor([0.2, 0.4, 0.6, 0.4, 0.1, 0.1, 0.1, 0.1], dtype=torch.float64)
    loss = FedCP(lam=3.0).loss(participant, toy.batch([[1.0, 1.0]], [0], padded, noise)).item()

    def gumbel(u):
        return -math.log(-math.log(u))

    s = logistic(0.5 + gumbel(0.2) - gumbel(0.6)), logistic(0.0)
    logits = [s[0] + 4 * (1 - s[0]), 2 * s[1] + (1 - s[1])]
    # The received extractor is the client's own, so the discrepancy is 0.
    assert loss == pytest.approx(math.log(sum(map(math.exp, logits))) - logits[0])


@toy.with_and_without_padding
def test_the_discrepancy_compares_all_pairs_by_gaussian_kernels(padded):
    first, second = [[0.0, 0.0], [3.0, 0.0]], [[0.0, 4.0], [0.0, 0.0]]
    batch = toy.batch(first, [0, 0], padded)

    def kernel(square):
        return sum(math.exp(-square / width) for width in WIDTHS)

    within = (2 * kernel(0) + 2 * kernel(9)) / 4 + (2 * kernel(0) + 2 * kernel(16)) / 4
    between = (kernel(16) + kernel(0) + kernel(25) + kernel(9)) / 4
    padding = [[9.0, 7.0]] * padded
    tensors = (torch.tensor(part + padding, dtype=torch.float64) for part in (first, second))
    assert _discrepancy(batch, *tensors).item() == pytest.approx(within - 2 * between)


def test_with_everything_sent_to_the_personal_head_it_is_fedper(dataset, partition):
    ours, server = toy.after_rounds("fedcp", dataset, partition, 0, hyperparameters={"lam": 0.0})
    width = server.store.shape("head.weight")[-1]
    server.store.share("policy.1.weight", torch.zeros(2 * width).double())
    server.store.share("policy.1.bias", torch.tensor([300.0, 0.0]).double().repeat_interleave(width))
    server.store.share("shared_head.bias", torch.zeros(4).double())
    ours.advance()
    _, fedper = toy.after_rounds("fedper", dataset, partition, 1)
    for name in fedper.groups.trainable:
        torch.testing.assert_close(server.store[name][:], fedper.store[name][:], rtol=0, atol=1e-9)


def test_the_shared_head_is_the_mean_of_itself_and_the_personal_heads(dataset, partition):
    _, server = toy.after_rounds("fedcp", dataset, partition, 1)
    present = server.participants
    shares = server.sizes[present] / server.sizes[present].sum()
    heads = torch.tensordot(shares, server.trained["head.weight"], 1)
    expected = (heads + server.received["shared_head.weight"][0]) / 2
    torch.testing.assert_close(server.store["shared_head.weight"][0], expected)
