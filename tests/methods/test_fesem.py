"""FeSEM's E- and M-step, on models that are one number each."""

from __future__ import annotations

import pytest
import torch

from pfl.engine.round import aggregate, dispatch
from pfl.methods.fesem import FeSEM
from tests.methods.scripted import models, scripted

SIZES = [10, 20, 30, 10, 20, 30]


def run(changes, rounds=1, **hyper):
    """Six clients that add ``changes[round - 1][client]`` to their model."""
    options = {"clusters": 2, "weights": "equal", **hyper}
    simulation = scripted("fesem", lambda _, round, client: changes[round - 1][client], SIZES, **options)
    for _ in range(rounds):
        simulation.advance()
    return simulation


def assignment(simulation):
    return simulation.runs[0].server.state["clusters"].tolist()


def test_each_centre_is_the_mean_of_the_uploads_that_are_nearest_to_it():
    simulation = run([[9, 10, 11, -9, -10, -11]])
    assert models(simulation) == pytest.approx([10, 10, 10, -10, -10, -10])


def test_centres_can_be_weighted_by_size():
    simulation = run([[9, 10, 11, -9, -10, -11]], weights="size")
    mean = (10 * 9 + 20 * 10 + 30 * 11) / 60
    assert models(simulation) == pytest.approx([mean] * 3 + [-mean] * 3)


def test_a_client_whose_upload_is_nearer_to_another_centre_changes_over():
    # In round 2 client 2 goes from 10 to -4, 14 from its own centre and 6 from the other.
    simulation = run([[9, 10, 11, -9, -10, -11], [0, 0, -14, 0, 0, 0]], rounds=2)
    first, second = assignment(simulation)[0], assignment(simulation)[3]
    assert first != second
    assert assignment(simulation) == [first, first, second, second, second, second]
    assert models(simulation) == pytest.approx([10, 10, -8.5, -8.5, -8.5, -8.5])


def test_an_absent_client_keeps_its_cluster_and_gets_its_model():
    simulation = run([[9, 10, 11, -9, -10, -11], [1] * 6], rounds=1)
    method, server = simulation.program.method, simulation.runs[0].server
    before = assignment(simulation)
    server.round, server.participants = 2, torch.tensor([0])
    dispatch(server, {})
    moving = server.groups.trainable
    server.trained = {name: value + 3.0 * (name in moving) for name, value in server.received.items()}
    aggregate(server, method.aggregate(server))
    assert assignment(simulation) == before
    assert models(simulation) == pytest.approx([13, 13, 13, -10, -10, -10])


def test_more_clusters_than_uploads_wait_for_clients_to_fill_them():
    simulation = scripted("fesem", range(0, 60, 10), SIZES, participation=0.34, clusters=6)
    centres = simulation.runs[0].server.state["centres"]
    simulation.advance()
    assert centres.isfinite().all(1).sum() == 2
    for _ in range(20):
        simulation.advance()
    assert len(set(assignment(simulation))) > 2


def test_the_distance_can_be_the_head_s_alone():
    method, server = FeSEM(distance="head"), run([[0] * 6]).runs[0].server
    assert method._names(server) == ("head.weight", "head.bias")
    assert set(FeSEM()._names(server)) == set(server.groups.trainable)


def reseeded(clusters, distances, k):
    assigned = torch.tensor(clusters)
    FeSEM(clusters=k)._reseed(assigned, torch.arange(len(clusters)), torch.tensor(distances))
    return assigned.tolist()


def test_an_empty_cluster_gets_the_upload_that_is_farthest_from_its_centre():
    assert reseeded([0, 0, 0, 1], [1.0, 5.0, 3.0, 9.0], k=3) == [0, 2, 0, 1]


def test_every_empty_cluster_gets_another_upload():
    assert reseeded([0, 0, 0, 0], [1.0, 5.0, 3.0, 2.0], k=3) == [0, 1, 2, 0]


def test_no_cluster_is_emptied_to_fill_another():
    assert reseeded([0, 1], [1.0, 1.0], k=3) == [0, 1]
    assert reseeded([0, 0], [0.0, 0.0], k=2) == [0, 0]
