"""Clustered federated learning: when a cluster splits, how, and who ends up where."""

from __future__ import annotations

import math

import pytest
import torch

from pfl.core.config import Config
from pfl.engine.round import aggregate, dispatch
from pfl.methods.clusterfl import ClusterFL
from pfl.run.validation import validated, warnings_of
from pfl.testing.synthetic import make_clients
from tests.methods.toy import after_rounds

LONG = 2.0
EAST, WEST, NORTH, SOUTH = [LONG, 0, 0, 0], [-LONG, 0, 0, 0], [0, LONG, 0, 0], [0, -LONG, 0, 0]


class Federation:
    """Eight clients whose training adds a vector of four numbers to the bias of the head."""

    def __init__(self, dataset, **hyperparameters):
        clients = make_clients(dataset, sizes=[5, 7, 9, 5, 6, 12, 5, 8])
        declared = {"first_split": 1, **hyperparameters}
        self.simulation, self.server = after_rounds(
            "clusterfl", dataset, clients, 0, hyperparameters=declared
        )
        self.initial = self.server.store["head.bias"][0]

    def round(self, changes):
        """One round in which the clients in ``changes`` take part."""
        server = self.server
        server.round += 1
        server.participants = torch.tensor(sorted(changes))
        dispatch(server, {})
        moves = torch.tensor([changes[client] for client in sorted(changes)], dtype=torch.float64)
        server.trained = {**server.received, "head.bias": server.received["head.bias"] + moves}
        aggregate(server, self.simulation.program.method.aggregate(server))

    @property
    def clusters(self):
        """The clusters as sets of client ids."""
        assigned = self.server.state["clusters"].tolist()
        return {frozenset(i for i in range(8) if assigned[i] == cluster) for cluster in assigned}

    def model(self, client):
        return (self.server.store["head.bias"][client] - self.initial).tolist()


def towards(**groups):
    """Changes of clients by direction: ``towards(east=[0, 2])``."""
    names = {"east": EAST, "west": WEST, "north": NORTH, "south": SOUTH}
    return {client: names[name] for name, clients in groups.items() for client in clients}


@pytest.fixture
def federation(dataset):
    return Federation(dataset)


def test_client_ids_are_kept_through_two_splits(federation):
    federation.round(towards(east=[1, 3, 4, 6], west=[0, 2, 5, 7]))
    assert federation.clusters == {frozenset({1, 3, 4, 6}), frozenset({0, 2, 5, 7})}
    assert federation.model(3) == pytest.approx(EAST)
    assert federation.model(5) == pytest.approx(WEST)

    # Positions inside {1, 3, 4, 6} taken for client ids would tear {0, 2, 5, 7} apart.
    federation.round(towards(north=[1, 6], south=[3, 4], west=[0, 2, 5, 7]))
    assert federation.clusters == {frozenset({1, 6}), frozenset({3, 4}), frozenset({0, 2, 5, 7})}
    assert federation.model(6) == pytest.approx([LONG, LONG, 0, 0])
    assert federation.model(4) == pytest.approx([LONG, -LONG, 0, 0])
    assert federation.model(0) == pytest.approx([-2 * LONG, 0, 0, 0])


def test_a_cluster_moves_by_the_plain_mean_whatever_the_sizes(federation):
    federation.round({client: [1.0 + client, 0, 0, 0] for client in range(8)})
    assert len(federation.clusters) == 1
    assert federation.model(0) == pytest.approx([4.5, 0, 0, 0])


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (towards(east=[0, 1, 2, 3, 4], west=[5, 6, 7]), "its mean change has norm 0.5, no shorter than eps1"),
        ({i: [1.5 * (-1) ** i, 0, 0, 0] for i in range(8)}, "no change has norm above eps2"),
        ({0: EAST, 1: WEST, 2: [0, 1, 0, 0]}, "three present members are too few"),
    ],
)
def test_a_cluster_stays_together_when(federation, changes, why):
    federation.round(changes)
    assert len(federation.clusters) == 1, why


def test_small_clusters_and_early_rounds_never_split(dataset):
    changes = towards(east=[0, 1, 2, 3], west=[4, 5, 6, 7])
    large = Federation(dataset, least_members=8)
    large.round(changes)
    assert len(large.clusters) == 1

    late = Federation(dataset, first_split=2)
    late.round(changes)
    assert len(late.clusters) == 1
    late.round(changes)
    assert len(late.clusters) == 2


def test_relative_thresholds_are_in_units_of_the_first_mean_norm(dataset):
    # Norms 1, 1, 3, 3, 1, 1, 3, 3: the unit is 2; the largest is 1.5 units.
    changes = {i: [(-1) ** i * (3.0 if i % 4 > 1 else 1.0), 0, 0, 0] for i in range(8)}
    for eps2, clusters in ((1.4, 2), (1.6, 1)):
        federation = Federation(dataset, thresholds="relative", eps1=0.1, eps2=eps2)
        federation.round(changes)
        assert federation.server.state["unit"] == pytest.approx(2.0)
        assert len(federation.clusters) == clusters


def test_absent_clients_follow_the_part_that_their_last_change_is_like(federation):
    federation.round(dict.fromkeys((0, 1), EAST))
    federation.round(dict.fromkeys((2, 3), WEST))
    federation.round(towards(east=[4, 5], west=[6, 7]))
    assert federation.clusters == {frozenset({0, 1, 4, 5}), frozenset({2, 3, 6, 7})}
    assert federation.model(1) == federation.model(4) != federation.model(2)


def test_a_client_that_did_not_move_has_no_say_but_follows(federation):
    federation.round({**towards(east=[1, 2, 3], west=[4, 5, 6]), 0: [0, 0, 0, 0]})
    together = next(cluster for cluster in federation.clusters if 0 in cluster)
    assert federation.model(0) == federation.model(min(together - {0})) != [0, 0, 0, 0]
    assert {len(cluster) for cluster in federation.clusters} == {3, 5}


def cosines(*degrees):
    angles = torch.tensor(degrees, dtype=torch.float64) * math.pi / 180
    return torch.cos(angles[:, None] - angles)


def test_complete_linkage_halves_a_chain_and_single_linkage_cuts_its_widest_gap():
    chain = cosines(0, 30, 62, 100)

    def parts(linkage):
        second = ClusterFL(linkage=linkage)._bipartition(chain).tolist()
        return {tuple(i for i in range(4) if second[i] == side) for side in (True, False)}

    assert parts("complete") == {(0, 1), (2, 3)}
    assert parts("single") == {(0, 1, 2), (3,)}


def test_parts_that_are_too_alike_are_not_taken_apart():
    chain = cosines(0, 30, 62, 100)  # the closest across the halves are 32 degrees apart
    bound = math.sin(math.radians(16))
    assert ClusterFL(gamma=bound - 0.01)._bipartition(chain) is not None
    assert ClusterFL(gamma=bound + 0.01)._bipartition(chain) is None


def test_too_few_rounds_for_a_split_are_a_warning():
    assert len(warnings_of(validated(Config(method="clusterfl", rounds=19)))) == 1
    assert warnings_of(validated(Config(method="clusterfl", rounds=20))) == ()
