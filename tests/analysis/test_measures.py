"""How alike clients are, computed anew from their models."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F

from pfl.analysis.measures import similarities
from tests.methods import toy


@pytest.fixture
def trained(dataset, partition):
    """A simulation whose clients trained alone for its only round, and its server."""
    simulation, server = toy.after_rounds("local", dataset, partition, 1, participation=1.0)
    server.config = dataclasses.replace(server.config, rounds=1)
    return simulation, server


@pytest.fixture
def measured(trained) -> dict[str, float]:
    """Each measure of clients 0 and 1."""
    simulation, server = trained
    matrices = similarities(server, simulation.program.net)
    assert all(rows[0][1] == rows[1][0] for rows in matrices.values())
    return {name: rows[0][1] for name, rows in matrices.items()}


def parameters(server, tensors) -> torch.Tensor:
    """Of clients 0 and 1, (2, d)."""
    return torch.cat([tensors[name][:2].flatten(1) for name in server.groups.trainable], 1)


def test_ldb_is_what_the_other_s_model_gains_in_loss_by_its_distance(trained, measured):
    simulation, server = trained
    models = server.store.rows(server.client_ids)

    def loss(owner: int, model: int) -> torch.Tensor:
        features, y = toy.features_of(simulation, models, model, server.samples[owner])
        return F.cross_entropy(simulation.program.net.head(features), y)

    first, second = parameters(server, models)
    gains = (loss(0, 0) - loss(0, 1)) + (loss(1, 1) - loss(1, 0))
    assert measured["ldb"] == pytest.approx(float(gains / 2 / (first - second).norm()))


def test_wdb_is_one_over_the_distance_of_batch_norm_s_statistics(trained, measured):
    _, server = trained
    means, variances = (
        [server.store[name] for name in server.groups["bn_stats"] if name.endswith(kind)]
        for kind in ("mean", "var")
    )
    distance = sum(
        ((m[0] - m[1]).square() + (v[0].sqrt() - v[1].sqrt()).square()).sum().sqrt()
        for m, v in zip(means, variances, strict=True)
    )
    assert measured["wdb"] == pytest.approx(float(1 / distance))


def test_mdb_is_the_cosine_of_updates_and_cs_the_mean_cosine_of_the_head_s_rows(trained, measured):
    _, server = trained
    updates = parameters(server, server.trained) - parameters(server, server.received)
    assert measured["mdb"] == pytest.approx(float(F.cosine_similarity(*updates, dim=0)))
    first, second = server.store["head.weight"][:2]
    assert measured["cs"] == pytest.approx(float(F.cosine_similarity(first, second, dim=1).mean()))


def test_updates_are_compared_only_if_all_clients_took_part(dataset, partition):
    simulation, server = toy.after_rounds("local", dataset, partition, 1, participation=0.5)
    server.config = dataclasses.replace(server.config, rounds=1)
    matrices = similarities(server, simulation.program.net)
    assert set(matrices) == {"data", "wdb", "ldb", "cs"}
    assert {torch.tensor(matrix).shape for matrix in matrices.values()} == {(server.clients, server.clients)}


def test_nothing_is_measured_before_the_last_round(trained):
    simulation, server = trained
    server.config = dataclasses.replace(server.config, rounds=2)
    assert similarities(server, simulation.program.net) is None
