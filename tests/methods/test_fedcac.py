"""FedCAC's masks, overlaps, threshold and merge, by hand."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch

from pfl.core.config import Config
from pfl.engine.mixing import mixed
from pfl.methods.fedcac import FedCAC
from pfl.run.validation import validated, warnings_of
from tests.methods.scripted import models, scripted
from tests.methods.toy import after_rounds, tensor


def server(start, end, round=1, rounds=10):
    return SimpleNamespace(
        received={"w": tensor(start)},
        uploads={"w": tensor(end)},
        participants=torch.arange(len(end)),
        count=lambda *_, **__: None,
        groups=SimpleNamespace(trainable=("w",)),
        round=round,
        rounds=rounds,
        seed=0,
    )


def marks(*rows, elements):
    """A mask a row, given by the positions of its marks."""
    return {"w": torch.tensor([[place in row for place in range(elements)] for row in rows])}


def test_the_most_sensitive_share_of_a_tensor_is_critical():
    # Sensitivities |change * end|: 1, 4, 9, 0.
    federation = server([[0, 0, 0, 2]], [[1, 2, -3, 2]])
    assert FedCAC(tau=0.5)._critical(federation, "w").tolist() == [[False, True, True, False]]
    assert FedCAC(tau=0.5, selection="sensitivity_reverse")._critical(federation, "w").tolist() == [
        [True, False, False, True]
    ]


def test_ties_go_to_the_first_elements_and_shares_are_rounded_down():
    federation = server([[0, 0, 0, 0]], [[1, 1, 1, 1]])
    assert FedCAC(tau=0.7)._critical(federation, "w").tolist() == [[True, True, False, False]]
    assert not FedCAC(tau=0.2)._critical(federation, "w").any()
    # 0.29 * 100 is 28.999999999999996.
    assert FedCAC(tau=0.29)._critical(server([[0] * 100], [[1] * 100]), "w").sum() == 29


def test_random_masks_are_as_large_and_fresh_in_every_round():
    start, end = [[0.0] * 50] * 3, [[1.0] * 50] * 3
    masks = [
        FedCAC(tau=0.5, selection="random")._critical(server(start, end, round), "w") for round in (1, 1, 2)
    ]
    assert all(mask.sum(1).tolist() == [25, 25, 25] for mask in masks)
    assert masks[0].equal(masks[1])
    assert not masks[0].equal(masks[2])
    assert not masks[0][0].equal(masks[0][1])


def test_the_authors_zero_rule_marks_all_but_the_zeros_where_the_last_marked_is_zero():
    # Half of four elements: the second largest sensitivity is 0 for the first client, 4 for the second.
    federation = server([[0, 1, 1, 1], [0, 0, 0, 0]], [[3, 1, 1, 1], [1, 2, 3, 0]])
    assert FedCAC(tau=0.5, fling_zero_rule=True)._critical(federation, "w").tolist() == [
        [True, False, False, False],
        [False, True, True, False],
    ]
    # A quarter of eight: both marked ones are tiny, and so is a third that only the rule marks.
    tiny = [[1e-12**0.5, 1e-12**0.5, 1e-14**0.5, 0, 0, 0, 0, 0]]
    federation = server([[0] * 8], tiny)
    assert FedCAC(tau=0.25)._critical(federation, "w").sum() == 2
    assert FedCAC(tau=0.25, fling_zero_rule=True)._critical(federation, "w").sum() == 3


def test_the_overlap_of_unequal_masks_is_one_minus_half_the_difference_over_the_own_marks():
    masks = marks({0, 1}, {1, 2, 3, 4}, set(), elements=6)
    overlaps = FedCAC()._overlaps(masks)
    assert overlaps.tolist() == [[1, 1 - 4 / 4, 1 - 2 / 4], [1 - 4 / 8, 1, 1 - 4 / 8], [0, 0, 0]]


def test_critical_statistics_are_averaged_like_critical_elements(dataset, partition):
    def means(**hyper):
        hyper = {"tau": 1.0, "collab": "top1", **hyper}
        _, server = after_rounds("fedcac", dataset, partition, 1, participation=1.0, hyperparameters=hyper)
        return server, server.store[server.groups["bn_stats"][0]]

    _, own = means()
    server, averaged = means(statistics="critical")
    collaborators = server.matrices["head.weight"].inside.matrix
    assert not collaborators.equal(torch.eye(6, dtype=torch.float64))
    torch.testing.assert_close(averaged, collaborators @ own)


def test_critical_statistics_that_stay_local_are_a_warning():
    config = validated(Config(method="fedcac", hyperparameters={"statistics": "critical"}, bn_stats="local"))
    assert warnings_of(config) == ("fedcac: bn_stats is local, so that critical statistics are not averaged",)
    assert warnings_of(dataclasses.replace(config, bn_stats="mixed")) == ()


def test_the_overlap_is_the_share_of_common_marks():
    masks = marks({0, 1}, {1, 2}, {2, 3}, elements=4)
    assert FedCAC()._overlaps(masks).tolist() == [[1, 0.5, 0], [0.5, 1, 0.5], [0, 0.5, 1]]


def test_the_printed_overlap_is_half_the_share_of_different_marks():
    masks = marks({0, 1}, {1, 2}, {2, 3}, elements=4)
    overlaps = FedCAC(overlap="literal")._overlaps(masks)
    assert overlaps.tolist() == [[0, 2 / 8, 4 / 8], [2 / 8, 0, 2 / 8], [4 / 8, 2 / 8, 0]]


# Overlaps: 3/4 of clients 0 and 1, 1/2 of 0 and 2 and of 1 and 2, 1/4 of 0 and 3, none of the others.
MASKS = marks({0, 1, 2, 3}, {0, 1, 2, 4}, {0, 1, 5, 6}, {3, 7, 8, 9}, elements=10)


def collaborators(round, **hyper):
    """Whom each of four clients shares with in one of ten rounds; collaboration ends after the fifth."""
    zeros = [[0.0] * 10] * 4
    chosen = FedCAC(beta=0.5, **hyper)._collaborators(server(zeros, zeros, round), MASKS)
    assert chosen.diagonal().tolist() == [1] * 4
    return [set(row.nonzero().flatten().tolist()) - {i} for i, row in enumerate(chosen)]


def test_the_threshold_climbs_from_the_mean_to_the_largest_overlap():
    # Mean 1/3, largest 3/4: 0.4167 in round 1, 0.5 in round 2, 0.5833 in round 3, 0.75 in round 5.
    assert collaborators(1) == [{1, 2}, {0, 2}, {0, 1}, set()]
    assert collaborators(2) == [{1, 2}, {0, 2}, {0, 1}, set()]  # equality counts
    assert collaborators(3) == [{1}, {0}, set(), set()]
    assert collaborators(5) == [{1}, {0}, set(), set()]
    assert collaborators(6) == [set()] * 4


def test_the_printed_overlap_chooses_the_least_alike():
    assert collaborators(5, overlap="literal") == [set(), {3}, {3}, {1, 2}]


def test_equal_overlaps_end_after_beta_too():
    everybody = marks({0, 1}, {0, 1}, {0, 1}, elements=4)
    zeros = [[0.0] * 4] * 3
    for round, count in ((5, 3), (6, 1)):
        chosen = FedCAC(beta=0.5)._collaborators(server(zeros, zeros, round), everybody)
        assert chosen.sum(1).tolist() == [count] * 3


@pytest.mark.parametrize("round", [1, 10])
def test_a_fixed_number_of_collaborators_stays_all_along(round):
    assert collaborators(round, collab="top1") == [{1}, {0}, {0}, {0}]
    assert collaborators(round, collab="top5") == [{1, 2, 3}, {0, 2, 3}, {0, 1, 3}, {0, 1, 2}]
    assert collaborators(round, collab="none") == [set()] * 4


def test_without_marks_nobody_collaborates():
    empty = marks(set(), set(), elements=4)
    assert (
        FedCAC()
        ._collaborators(server([[0.0] * 4] * 2, [[0.0] * 4] * 2), empty)
        .equal(torch.eye(2, dtype=torch.float64))
    )


def merged(end, **hyper):
    """What four elements of three clients become."""
    federation = server([[0.0] * 4] * 3, end)
    mixing = FedCAC(tau=0.5, beta=1.0, **hyper).aggregate(federation)["w"]
    return mixed(tensor(end), mixing).flatten().tolist()


# Clients 0 and 1 mark elements 0 and 1, client 2 marks 2 and 3.
ENDS = [[9.0, 6.0, 0.0, 3.0], [3.0, 8.0, 3.0, 0.0], [0.0, 1.0, 6.0, 6.0]]


def test_critical_elements_are_averaged_among_alike_clients_and_the_others_among_all():
    assert merged(ENDS) == pytest.approx([*[6, 7, 3, 3], *[6, 7, 3, 3], *[4, 5, 6, 6]])


def test_critical_elements_stay_personal_without_collaboration():
    assert merged(ENDS, collab="none") == pytest.approx([*[9, 6, 3, 3], *[3, 8, 3, 3], *[4, 5, 6, 6]])


def test_the_other_elements_may_be_treated_like_the_critical_ones():
    alike = [6, 7, 1.5, 1.5]
    assert merged(ENDS, noncritical="as_critical") == pytest.approx([*alike, *alike, 0, 1, 6, 6])


def test_absent_clients_keep_their_models():
    simulation = scripted("fedcac", range(6), [12] * 6, participation=0.5, tau=0.0)
    simulation.advance()
    present = simulation.runs[0].server.participants.tolist()
    mean = sum(present) / 3
    assert models(simulation) == pytest.approx([mean if k in present else 0 for k in range(6)])
