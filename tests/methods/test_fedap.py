"""FedAP's statistics and matrix, by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import pfl
from pfl.core.errors import InvalidInput
from pfl.engine.groups import bind
from pfl.engine.loop import LoopBackend
from pfl.engine.round import dispatch
from pfl.engine.stacked import StackedBackend
from pfl.methods.fedap import FedAP
from tests.methods import toy


def columns(*rows):
    return [torch.tensor(row, dtype=torch.float64) for row in rows]


def test_weights_fall_with_the_distances_summed_over_layers():
    # Layer 1: means 3 and standard deviations 4 apart between 0 and 1; layer 2: client 2 is 10 from both.
    means = columns([[0.0], [3.0], [0.0]], [[0.0, 0.0], [0.0, 0.0], [6.0, 8.0]])
    variances = columns([[1.0], [25.0], [1.0]], [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]])
    weights = FedAP(mu=0.4)._weights(means, variances)
    d01, d02, d12 = 5.0, 10.0, 5.0 + 10.0
    assert weights[0].tolist() == pytest.approx([0.4, 0.6 * d02 / (d01 + d02), 0.6 * d01 / (d01 + d02)])
    assert weights[1].tolist() == pytest.approx([0.6 * d12 / (d01 + d12), 0.4, 0.6 * d01 / (d01 + d12)])


def test_equal_clients_share_equally_and_outweigh_all_others():
    means = columns([[0.0], [0.0], [0.0], [1.0]])
    variances = columns([[1.0], [1.0], [1.0], [1.0]])
    weights = FedAP(mu=0.5)._weights(means, variances)
    assert weights[0].tolist() == pytest.approx([0.5, 0.25, 0.25, 0.0], abs=1e-12)
    assert weights[3].tolist() == pytest.approx([1 / 6, 1 / 6, 1 / 6, 0.5])


def test_a_client_alone_keeps_its_model():
    assert FedAP(mu=0.5)._weights(columns([[2.0]]), columns([[1.0]])).tolist() == [[1.0]]


def after_rounds(dataset, partition, rounds, backend=None):
    """A simulation with a warm-up of two rounds."""
    warm_up = {"rho": 0.25}
    return toy.after_rounds("fedap", dataset, partition, rounds, backend, hyperparameters=warm_up)[0]


def feature_maps(simulation, common, samples):
    """Outputs of both convolutions for some images, (channels, values) each."""
    net = simulation.program.net
    bind(net, {name: stack[0] for name, stack in common.items()})
    net.eval()
    x, _ = simulation.federation.batch(torch.from_numpy(samples))
    with torch.no_grad():
        first = net.extractor.conv1(x)
        second = net.extractor.conv2(net.extractor.pool1(net.extractor.bn1(first)))
    return [maps.transpose(0, 1).flatten(1) for maps in (first, second)]


@pytest.mark.parametrize("backend", [LoopBackend, StackedBackend])
def test_the_matrix_compares_the_feature_maps_of_the_common_model(backend, dataset, partition):
    warm = after_rounds(dataset, partition, 2, backend())
    server = warm.runs[0].server
    assert torch.equal(server.state["weights"], torch.eye(6, dtype=torch.float64))
    common = {name: server.store[name].mean(0, keepdim=True) for name in server.store.tensors}
    layers = zip(*(feature_maps(warm, common, samples) for samples in partition.train), strict=True)
    means, variances = [], []
    for layer in layers:
        means.append(torch.stack([maps.mean(1) for maps in layer]))
        variances.append(torch.stack([maps.var(1, correction=0) for maps in layer]))
    warm.advance()
    expected = FedAP()._weights(means, variances)
    torch.testing.assert_close(server.state["weights"], expected, rtol=0, atol=1e-9)


def test_batch_norm_stays_personal_and_the_rest_is_mixed_from_stored_models(dataset, partition):
    simulation = after_rounds(dataset, partition, 3)
    server = simulation.runs[0].server
    before = {name: server.store[name].clone() for name in server.store.tensors}
    server.round += 1
    server.participants = torch.tensor([1, 4])
    dispatch(server, simulation.program.method.dispatch(server))
    personal = {*server.groups["bn_affine"], *server.groups["bn_stats"]}
    for name, received in server.received.items():
        rows = before[name][server.participants]
        mixed = torch.einsum("kn,n...->k...", server.state["weights"][server.participants], before[name])
        torch.testing.assert_close(received, rows if name in personal else mixed, rtol=0, atol=1e-12)


def test_the_statistics_are_sent_once_by_all_clients(dataset, partition):
    simulation = after_rounds(dataset, partition, 3)
    server = simulation.runs[0].server
    model = server.scalars("all") - server.scalars("bn_affine", "bn_stats")
    present = len(server.participants)
    channels = 6 + 16  # of the two convolutions: a mean and a standard deviation each
    assert server.traffic.total == (present * model, present * model + 6 * 2 * channels)
    weights = server.state["weights"].clone()
    simulation.advance()
    assert server.traffic.total == (present * model, present * model)
    assert torch.equal(server.state["weights"], weights)


def test_the_headline_is_what_a_client_trained_and_after_aggregation_comes_the_mixture(dataset, partition):
    simulation = after_rounds(dataset, partition, 3)
    server, method = simulation.runs[0].server, simulation.program.method
    assert method.headline == "post_local"
    personal = {*server.groups["bn_affine"], *server.groups["bn_stats"]}
    some = slice(1, 4)
    own, mixture = (method.personal(server, moment, some) for moment in ("post_local", "post_aggregation"))
    assert own.keys() == mixture.keys() == server.store.tensors.keys()
    for name in own:
        stored = server.store[name]
        assert torch.equal(own[name], stored[some])
        rows = torch.einsum("kn,n...->k...", server.state["weights"][some], stored)
        expected = stored[some] if name in personal else rows
        torch.testing.assert_close(mixture[name], expected, rtol=0, atol=1e-12)


def test_the_first_mixture_after_the_warm_up_is_by_the_statistics(dataset, partition):
    simulation = after_rounds(dataset, partition, 2)
    server, method = simulation.runs[0].server, simulation.program.method
    server.round += 1
    server.participants = torch.tensor([1, 4])
    assert torch.equal(server.state["weights"], torch.eye(6, dtype=torch.float64))
    matrix = method.dispatch(server)["all"].matrix
    assert torch.equal(matrix, server.state["weights"][[1, 4]])
    assert matrix.count_nonzero() == matrix.numel()


def test_a_network_without_convolutions_is_refused_before_the_warm_up():
    def perceptron(_, classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, classes))

    with pytest.raises(InvalidInput, match=r"^model: perceptron .*with convolutions"):
        pfl.simulate("fedap", model=perceptron, clients=3, rounds=2, progress=False)
