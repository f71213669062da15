"""PFedCS's distances, clusters, threshold, weights and guards, by hand."""

from types import SimpleNamespace

import pytest
import torch

from pfl.engine.client import Batch, Client
from pfl.engine.client_store import ClientStore
from pfl.methods.pfedcs import PFedCS, farthest_candidate
from pfl.models._network import Network
from tests.methods.scripted import scripted
from tests.methods.toy import after_rounds, tensor


def server(heads=((0.0,), (1.0,), (3.0,)), sizes=None, round=1, rounds=10, participants=None):
    heads = tensor(heads)
    return SimpleNamespace(
        store=ClientStore({"head.weight": heads, "head.bias": 10 * heads}, len(heads)),
        groups={"head": ["head.weight", "head.bias"]},
        sizes=tensor(sizes or [1] * len(heads)),
        clients=len(heads),
        participants=torch.arange(len(heads)) if participants is None else torch.tensor(participants),
        count=lambda *_, **__: None,
        scalars=lambda *_: 0,
        round=round,
        rounds=rounds,
        seed=0,
    )


def weights(distances, sizes, members=None, **hyper):
    """Of a client whose heads are at these distances; ``members`` of its cluster, by default everybody."""
    chosen = torch.tensor([members or [True] * len(distances)])
    return PFedCS(**hyper)._weights(tensor([distances]), chosen, tensor(sizes))[0].tolist()


def test_similarity_weights_fall_with_the_distance_and_all_weights_sum_to_one():
    # Distances 0 (itself), 0.2, 0.5, 0.9: mean 0.4, so the first term is (0.9 - D) / (4 * 0.5).
    shares = weights([0, 0.2, 0.5, 0.9], [1, 1, 1, 1], similarity=0.5)
    assert shares == pytest.approx([0.35, 0.3, 0.225, 0.125])


def test_sizes_count_as_much_as_similarity_does_not():
    shares = weights([0, 1, 0.5], [10, 30, 99], [True, True, False], similarity=0.25)
    assert shares == pytest.approx([0.25 + 0.75 * 0.25, 0.75 * 0.75, 0])


def test_equal_distances_weigh_the_same():
    assert weights([0, 0, 0], [1, 5, 9], similarity=1.0) == pytest.approx([1 / 3] * 3)
    assert weights([0, 0.3, 1], [1, 5, 9], [True, False, False], similarity=0.5) == pytest.approx([1, 0, 0])


def test_distances_are_relative_to_the_farthest_of_the_row():
    # Squared distances 1, 9 and 4 between heads 0, 1 and 3.
    shares = PFedCS(select="all", similarity=1.0)._shares(server())
    first = [(1 - d) / (3 - 1 / 9 - 1) for d in (0, 1 / 9, 1)]
    second = [(1 - d) / (3 - 1 / 4 - 1) for d in (1 / 4, 0, 1)]
    assert shares[0].tolist() == pytest.approx(first)
    assert shares[1].tolist() == pytest.approx(second)


def test_distances_may_be_relative_to_the_farthest_pair():
    # Squared distances of client 0: 6, 9, 9 and 9; of the farthest pair: 36. Only 6/36 is within 0.5.
    federation = server(heads=[[0.0], [6**0.5], [3.0], [3.0], [-3.0]], round=0)
    members = {
        maximum: PFedCS(cluster="FIX", similarity=0.0, maximum=maximum)._shares(federation)[0].nonzero()
        for maximum in ("row", "global")
    }
    assert members["row"].flatten().tolist() == [0]
    assert members["global"].flatten().tolist() == [0, 1]


def test_heads_of_one_direction_are_at_no_distance_when_rows_have_length_one():
    # Two classes in two dimensions: client 1 has twice the head of client 0, client 2 another class weight.
    heads = [[[1.0, 0.0], [0.0, 1.0]], [[2.0, 0.0], [0.0, 2.0]], [[1.0, 0.0], [0.6, 0.8]]]
    shares = PFedCS(select="all", similarity=1.0, unit_rows=True)._shares(server(heads=heads))
    assert shares[0].tolist() == pytest.approx([0.5, 0.5, 0])


def test_the_farthest_member_has_a_share_where_d_max_is_the_rows():
    near = [True, True, True, False]
    shares = weights([0, 0.2, 0.5, 1.0], [1, 1, 1, 1], near, similarity=1.0, farthest="row")
    assert shares == pytest.approx([1 / 2.3, 0.8 / 2.3, 0.5 / 2.3, 0])


def test_fixed_random_collaborators_are_the_same_in_every_round():
    def chosen(select, round):
        federation = server(heads=[[float(k)] for k in range(12)], round=round)
        return (PFedCS(select=select, similarity=0.0)._shares(federation) > 0).tolist()

    assert chosen("random_fixed", 1) == chosen("random_fixed", 2)
    assert chosen("random", 1) != chosen("random", 2)
    assert all(sum(row) == 4 for row in chosen("random_fixed", 1))


def test_only_participants_get_a_teacher_out_of_all_stored_heads():
    federation = server(participants=[1])
    sent = PFedCS(select="all", similarity=0.0).dispatch(federation)
    assert sent["teacher.weight"].tolist() == [[pytest.approx(4 / 3)]]
    assert sent["teacher.bias"].tolist() == [[pytest.approx(40 / 3)]]


def test_equal_heads_make_that_head_the_teacher():
    federation = server(heads=[[2.0]] * 4, sizes=[1, 2, 3, 4])
    sent = PFedCS().dispatch(federation)
    assert sent["teacher.weight"].flatten().tolist() == pytest.approx([2.0] * 4)


@pytest.mark.parametrize("cluster", ["GMM", "KM", "HIER"])
def test_the_nearer_cluster_ends_at_the_gap(cluster):
    assert farthest_candidate([0.9, 0.1, 0.14, 0.95, 0.12, 1.0], cluster) == 0.14


def test_two_means_are_the_best_two():
    # From the smallest and the largest value, Lloyd's steps end at another division.
    assert farthest_candidate([0.35, 0.65, 0.7, 0.8, 0.95, 1.0], "KM") == 0.35


def test_a_fixed_distance_takes_the_place_of_clusters():
    assert farthest_candidate([0.9, 0.1, 0.14], "FIX") == 0.5


@pytest.mark.parametrize("cluster", ["GMM", "KM", "HIER"])
@pytest.mark.parametrize("distances", [[0.4], [0.0, 0.0, 0.0], [0.2, 1.0, 1.0, 0.2]])
def test_fewer_than_three_distinct_distances_are_one_cluster(cluster, distances):
    assert farthest_candidate(distances, cluster) == max(distances)


@pytest.mark.parametrize("cluster", ["GMM", "KM", "HIER"])
def test_distances_to_diverged_heads_are_one_cluster(cluster):
    assert farthest_candidate([0.1, float("nan"), 0.3, 0.5], cluster) == 0.5


def test_what_is_nearer_than_a_member_of_the_nearer_cluster_belongs_to_it():
    # The component of lower mean is the narrow one; the wide one claims the points on both sides of it.
    narrow = [0.5 + i / 1000 for i in range(8)]
    distances = [0.0, *narrow, 0.8, 1.0]
    assert farthest_candidate(distances, "GMM") == 0.507
    federation = server([[0.0]] * 12, round=0)  # round 0: all up to the mean pass the threshold
    assert PFedCS()._collaborators(federation, 11, [*distances, 0.0]) == list(range(9))


def chosen(round, select="similar"):
    """Whom client 4 takes heads from, at distances 0.1, 0.2, 0.3 and 1, in a first stage of 5 rounds."""
    federation = server([[0.0]] * 5, round=round, rounds=10)
    method = PFedCS(beta=0.5, cluster="FIX", select=select)
    return method._collaborators(federation, 4, [0.1, 0.2, 0.3, 1.0, 0.0])


def test_the_threshold_sinks_from_the_mean_to_the_nearest():
    # 0.4 - t / 5 * 0.3, within the candidates 0.1, 0.2 and 0.3.
    assert chosen(round=1) == [0, 1, 2]  # 0.34
    assert chosen(round=2) == [0, 1]  # 0.28
    assert chosen(round=5) == [0]  # 0.1


def test_all_others_or_three_random_ones_know_no_threshold():
    assert chosen(round=5, select="all") == [0, 1, 2, 3]
    draws = [chosen(round, select="random") for round in range(1, 9)]
    assert all(len(set(draw)) == 3 and 4 not in draw for draw in draws)
    assert len({tuple(sorted(draw)) for draw in draws}) > 1
    assert chosen(1, select="random") == draws[0]


def test_the_teacher_is_followed_through_the_current_extractor_and_learns_nothing():
    net = Network(torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 2, bias=False)).double()
    net.add_module("teacher", torch.nn.Linear(1, 2, bias=False).double())
    for module, weight in (
        (net.extractor, [[2.0]]),
        (net.head, [[1.0], [0.0]]),
        (net.teacher, [[0.0], [3.0]]),
    ):
        module.weight.data = tensor(weight)
    batch = Batch(tensor([[0.5], [-1.0]]), torch.tensor([0, 1]))
    loss = PFedCS(distillation=2.0)._taught_loss(Client(net, {}, {}, {}), batch)
    log_model, teacher = tensor([[1, 0], [-2, 0]]).log_softmax(1), tensor([[0, 3], [0, -6]]).softmax(1)
    entropy = -(log_model[0, 0] + log_model[1, 1]) / 2
    divergence = (teacher * (teacher.log() - log_model)).sum() / 2
    assert loss.item() == pytest.approx((entropy + 2 * divergence).item())
    loss.backward()
    assert net.teacher.weight.grad is None
    # Through the head alone: what the teacher adds is gamma (model - teacher).
    by_hand = (log_model.exp() - tensor([[1, 0], [0, 1]])) / 2 + (log_model.exp() - teacher)
    expected = (by_hand[:, 0] * tensor([0.5, -1.0])).sum()
    assert net.extractor.weight.grad.item() == pytest.approx(expected.item())


def test_heads_travel_in_the_first_stage_only():
    simulation = scripted("pfedcs", lambda *_: 1.0, [12] * 3, beta=0.001)
    run, groups = simulation.runs[0], simulation.runs[0].server.scalars
    simulation.advance()
    assert run.bytes_down == run.bytes_up == 4 * 3 * groups("extractor", "head")
    simulation.advance()
    assert run.bytes_down == 4 * 3 * (groups("extractor", "head") + groups("extractor"))


def test_both_moments_are_of_the_own_head_and_one_is_of_the_global_extractor(dataset, partition):
    simulation, trained = after_rounds("pfedcs", dataset, partition, 2)
    method, present = simulation.program.method, trained.participants
    assert method.headline == "post_aggregation"
    after, local = (method.personal(trained, moment) for moment in ("post_aggregation", "post_local"))
    for name in ("head.weight", "extractor.conv1.weight"):
        assert torch.equal(local[name][present], trained.uploads[name])
    assert torch.equal(after["head.weight"], local["head.weight"])
    extractors = after["extractor.conv1.weight"]
    assert torch.equal(extractors, extractors[:1].expand_as(extractors))
