"""FedSimSup's alpha and W by hand (Eq. 8 and 9), its variants and its supervisors."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from pfl.core.config import Config
from pfl.engine.evaluation import evaluate
from pfl.engine.mixing import check_rows
from pfl.methods.fedsimsup import MIXED, FedSimSup
from pfl.run.validation import validated, warnings_of
from tests.conftest import simulate
from tests.methods.toy import after_rounds


def mixing(sizes, label_counts, participants, now=2, rounds=9, **hyperparameters):
    server = SimpleNamespace(
        sizes=torch.tensor(sizes, dtype=torch.float64),
        label_counts=torch.tensor(label_counts, dtype=torch.float64),
        participants=torch.tensor(participants),
        clients=len(sizes),
        round=now,
        rounds=rounds,
        state={},
    )
    method = FedSimSup(supervisor="none", **hyperparameters)
    method.initialise(server)
    dense = method.aggregate(server)["model"]
    check_rows(dense)
    return dense


# Client 0 has the labels of client 1 (cosine 1); with those of client 2 its cosine is 0.6.
SIZES, COUNTS = [50, 400, 600], [[5, 0], [7, 0], [6, 8]]


def test_an_absent_client_mixes_the_participants_by_label_similarity():
    dense = mixing(SIZES, COUNTS, participants=[1, 2])
    alpha = 50 / (50 + 500)
    assert dense.rows.tolist() == [0]
    assert dense.own.tolist() == pytest.approx([alpha])
    assert dense.matrix[0].tolist() == pytest.approx([(1 - alpha) * 1 / 1.6, (1 - alpha) * 0.6 / 1.6])


@pytest.mark.parametrize(("now", "beta"), [(2, 1.0), (40, 1.0), (41, (40 / 41) ** 2), (80, 0.25)])
def test_the_published_text_s_factor_damps_the_mixture_late_in_training(now, beta):
    # c T^gamma = 4 * 100^0.5 = 40.
    published = {"damping": 4.0, "damping_exponent": 0.5}
    dense = mixing(SIZES, COUNTS, participants=[1, 2], now=now, rounds=100, **published)
    mixed = beta * 500 / 550
    assert dense.own.tolist() == pytest.approx([1 - mixed])
    assert dense.matrix[0].tolist() == pytest.approx([mixed * 1 / 1.6, mixed * 0.6 / 1.6])


def test_the_seed_paper_s_rule_has_no_such_factor():
    late = mixing(SIZES, COUNTS, participants=[1, 2], now=99, rounds=100)
    assert late.own.tolist() == mixing(SIZES, COUNTS, participants=[1, 2], now=2).own.tolist()


def test_equal_sizes_keep_half():
    dense = mixing([10, 10, 10], [[1, 1], [1, 2], [0, 1]], participants=[2])
    assert dense.own.tolist() == [0.5, 0.5]


def test_a_client_without_a_common_label_keeps_its_model():
    dense = mixing([10, 10], [[1, 0], [0, 1]], participants=[1])
    assert dense.own.tolist() == [1.0]
    assert dense.matrix.tolist() == [[0.0]]


@pytest.mark.parametrize(("exponent", "second"), [(0.0, 1.0), (1.0, 0.6), (2.0, 0.36)])
def test_the_exponent_sharpens_the_similarity_and_0_ignores_it(exponent, second):
    dense = mixing([10, 10, 10], COUNTS, participants=[1, 2], exponent=exponent)
    shares = [0.5 / (1 + second), 0.5 * second / (1 + second)]
    assert dense.matrix[0].tolist() == pytest.approx(shares)


def test_without_similarity_strangers_are_mixed_too():
    dense = mixing([10, 10], [[1, 0], [0, 1]], participants=[1], exponent=0.0)
    assert (dense.own.tolist(), dense.matrix.tolist()) == ([0.5], [[0.5]])


def test_mixed_for_everyone_a_participant_mixes_the_others():
    dense = mixing(SIZES, COUNTS, participants=[1, 2], mixes="everyone")
    # Clients 1 and 2 have only each other; client 0 is as before.
    assert dense.rows.tolist() == [0, 1, 2]
    assert dense.own.tolist() == pytest.approx([50 / 550, 400 / 1000, 600 / 1000])
    assert dense.matrix[1].tolist() == pytest.approx([0, 600 / 1000])
    assert dense.matrix[2].tolist() == pytest.approx([400 / 1000, 0])


def test_mixed_for_everyone_a_participant_alone_keeps_its_model():
    dense = mixing([10, 30], [[1, 1], [1, 1]], participants=[1], mixes="everyone")
    assert dense.own.tolist() == [10 / 40, 1.0]


def test_full_participation_is_a_warning_not_an_error():
    config = validated(Config(method="fedsimsup", participation=1.0))
    assert any("nothing is mixed" in line for line in warnings_of(config))
    assert warnings_of(validated(Config(method="fedsimsup", participation=0.5, epochs=5))) == ()
    everyone = Config(method="fedsimsup", participation=1.0, epochs=5, hyperparameters={"mixes": "everyone"})
    assert warnings_of(validated(everyone)) == ()


def test_other_epochs_than_the_configuration_s_are_a_warning():
    config = validated(Config(method="fedsimsup", participation=0.5, epochs=2))
    assert warnings_of(config) == ("fedsimsup: supervisor and model train for 5 epochs, not 2",)


# ---- supervisors ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mixed(dataset, partition):
    """One round of all clients with supervisors of all kinds."""
    hyperparameters = {"supervisor": "mixed", "supervisor_epochs": 1, "model_epochs": 1}
    return after_rounds(
        "fedsimsup", dataset, partition, 1, participation=1.0, hyperparameters=hyperparameters
    )


def test_with_mixed_kinds_every_client_has_one_drawn_at_the_start(mixed):
    _, server = mixed
    assert (server.client_state["kind"].sum(1) == 1).all()
    assert (server.client_state["kind"].sum(0) > 0).all(), "this seed gives every kind to somebody"


def test_only_the_supervisor_of_a_client_s_own_kind_learns(mixed):
    _, server = mixed
    for number, kind in enumerate(MIXED):
        names = server.groups.trained(("supervisor",))
        moved = torch.stack(
            [
                (server.uploads[name] - server.received[name]).flatten(1).abs().amax(1)
                for name in names
                if name.startswith(f"supervisor.{kind}.")
            ]
        ).amax(0)
        assert torch.equal(moved > 0, server.client_state["kind"][:, number] > 0)


def test_a_client_s_logits_are_its_model_s_and_its_own_supervisor_s(mixed):
    simulation, _ = mixed
    net = simulation.program.net.eval()
    x = torch.randn(3, 1, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for number, kind in enumerate(MIXED):
        own = torch.nn.functional.one_hot(torch.tensor(number), 3)
        logits = simulation.program.method.logits(SimpleNamespace(net=net, state={"kind": own}), x)
        torch.testing.assert_close(logits, net(x) + net.get_submodule(f"supervisor.{kind}")(x))


def test_a_transformer_s_gradient_is_scaled_by_its_rate(mixed):
    simulation, _ = mixed
    net = simulation.program.net.eval()
    kinds = {"kind": torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)}
    heads = [net.get_submodule(f"supervisor.{kind}.head").bias for kind in ("T", "C")]
    x = torch.zeros(1, 1, 16, 16, dtype=torch.float64)
    for head in heads:
        head.requires_grad_()
    logits = FedSimSup(supervisor="mixed", transformer_lr=0.2).logits(
        SimpleNamespace(net=net, state=kinds), x
    )
    slow, plain = torch.autograd.grad(logits[0, 0], heads)
    assert (slow[0].item(), plain[0].item()) == pytest.approx((0.2, 1.0))


def test_accuracies_by_kind_make_up_the_whole(mixed):
    simulation, server = mixed
    scores, groups, per_client = evaluate(server, simulation.program.method, {})
    assert set(groups) == set(MIXED)
    kinds = server.client_state["kind"]
    for number, kind in enumerate(MIXED):
        theirs = groups[kind]["post_aggregation"]
        assert theirs.client_mean == pytest.approx(per_client[kinds[:, number] > 0].mean().item())
    # All clients have as many test samples.
    whole = sum(
        groups[kind]["post_aggregation"].pooled * kinds[:, number].sum().item()
        for number, kind in enumerate(MIXED)
    )
    assert whole / 6 == pytest.approx(scores["post_aggregation"].pooled)


def test_each_kind_of_supervisor_is_a_group_of_its_own(dataset, partition):
    few = {"supervisor_epochs": 1, "model_epochs": 1, "supervisor": "mixed"}
    config = Config(
        method="fedsimsup", hyperparameters=few, model="lenet5", rounds=2, eval_every=1, batch_size=8
    )
    groups = simulate(config, dataset, partition)[0].metrics.to_json()["groups"]
    assert set(groups) == set(MIXED)
    assert groups["T"]["accuracy"] == groups["T"]["moments"]["post_aggregation"]


def test_one_kind_for_all_needs_no_groups(dataset, partition):
    simulation, server = after_rounds("fedsimsup", dataset, partition, 0)
    assert simulation.program.method.client_groups(server) == {}
    assert server.client_state["kind"].tolist() == [[1.0]] * 6


def test_without_a_supervisor_the_model_trains_for_all_epochs(dataset, partition):
    _, server = after_rounds("fedsimsup", dataset, partition, 0, hyperparameters={"supervisor": "none"})
    (phase,) = FedSimSup(supervisor="none").phases(server)
    assert (phase.epochs, phase.trains) == (5, ("model",))
    assert server.groups["supervisor"] == ()
