"""FedFomo's choice, weights and validation split, by hand."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pfl.engine.client_store import ClientStore
from pfl.methods.fedfomo import FedFomo, _shares
from tests.methods.toy import after_rounds

WEIGHTS = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 2.0], [6.0, 8.0]], dtype=torch.float64)


def server(participants, uploaded, affinity=None, validation=(10, 10, 10, 10), round=9):
    clients = len(WEIGHTS)
    return SimpleNamespace(
        seed=0,
        round=round,
        clients=clients,
        participants=torch.tensor(participants),
        store=ClientStore({"w": WEIGHTS}, clients),
        groups=SimpleNamespace(trainable=("w",)),
        config=SimpleNamespace(bn_stats="mixed"),
        held_out=[np.arange(size) for size in validation],
        state={
            "affinity": torch.eye(clients, dtype=torch.float64) if affinity is None else affinity,
            "uploaded": torch.isin(torch.arange(clients), torch.tensor(uploaded)),
        },
    )


def test_the_weights_are_the_gains_in_loss_over_the_distance():
    # Losses by (judging client, model); client 0 receives 1 and 2, client 3 receives 1.
    mean_loss = {(0, 0): 1.0, (0, 1): 0.4, (0, 2): 1.5, (3, 3): 2.0, (3, 1): 0.5}
    federation = server([0, 3], [1, 2], validation=(10, 1, 1, 20))

    def collect(_statistic, judges, models, samples):
        ids = [WEIGHTS.tolist().index(model) for model in models["w"].tolist()]
        judged = zip(judges.tolist(), ids, samples, strict=True)
        sums = [mean_loss[judge, model] * len(index) for judge, model, index in judged]
        return {"loss": torch.tensor(sums, dtype=torch.float64)}

    federation.collect = collect
    chosen = torch.tensor([[False, True, True, False], [False, True, False, False]])
    gains = FedFomo()._gains(federation, chosen)
    expected = torch.zeros(2, 4, dtype=torch.float64)
    expected[0, 1] = (1.0 - 0.4) / (5 + 1e-5)
    expected[0, 2] = (1.0 - 1.5) / (2 + 1e-5)
    expected[1, 1] = (2.0 - 0.5) / (5 + 1e-5)
    torch.testing.assert_close(gains, expected)


def test_gains_may_be_measured_from_the_model_before_local_training():
    # Client 0 trained from (0, 4); its own model 0 and model 1 are candidates.
    mean_loss = {(0.0, 4.0): 2.0, (0.0, 0.0): 1.2, (3.0, 4.0): 0.5}
    federation = server([0], [0, 1])
    before = WEIGHTS.clone()
    before[0] = torch.tensor([0.0, 4.0])
    federation.state["before"] = {"w": before}

    def collect(_statistic, judges, models, samples):
        assert judges.tolist() == [0, 0, 0]
        losses = [mean_loss[tuple(model)] for model in models["w"].tolist()]
        sums = [loss * len(index) for loss, index in zip(losses, samples, strict=True)]
        return {"loss": torch.tensor(sums, dtype=torch.float64)}

    federation.collect = collect
    method = FedFomo(baseline="before_training", models=2, epsilon=0.0)
    chosen = method._choice(federation)
    assert chosen.tolist() == [[True, True, False, False]]
    gains = method._gains(federation, chosen)[0]
    own, other = (2.0 - 1.2) / (4 + 1e-5), (2.0 - 0.5) / (3 + 1e-5)
    assert gains.tolist() == pytest.approx([own, other, 0.0, 0.0])
    shares = _shares(gains[None], torch.tensor([0]))[0]
    assert shares.tolist() == pytest.approx([own / (own + other), other / (own + other), 0.0, 0.0])


def test_a_model_that_lost_by_training_weighs_nothing_even_its_own():
    gains = torch.tensor([[-0.2, 0.1, 0.0]], dtype=torch.float64)
    assert _shares(gains, torch.tensor([0])).tolist() == [[0.0, 1.0, 0.0]]


def test_positive_weights_are_normalised_and_the_own_model_has_none():
    gains = torch.tensor([[0.0, 0.3, -1.0, 0.1]], dtype=torch.float64)
    assert _shares(gains, torch.tensor([0]))[0].tolist() == pytest.approx([0.0, 0.75, 0.0, 0.25])


def test_a_client_that_nobody_helps_keeps_its_model():
    gains = torch.tensor([[-0.3, 0.0, -1.0]], dtype=torch.float64)
    assert _shares(gains, torch.tensor([1])).tolist() == [[0.0, 1.0, 0.0]]


def test_the_largest_affinities_among_those_who_uploaded_are_chosen():
    affinity = torch.tensor([[9.0, 0.1, 0.5, 0.7], [0.0] * 4, [0.2, 0.1, 9.0, 8.0], [0.0] * 4])
    federation = server([0, 2], uploaded=[0, 1, 2], affinity=affinity)
    sent = FedFomo(models=1, epsilon=0.0)._choice(federation)
    # Client 3 did not upload, and nobody receives its own model.
    assert sent.tolist() == [[False, False, True, False], [True, False, False, False]]


def test_fewer_uploads_than_models_are_all_chosen():
    sent = FedFomo(models=5)._choice(server([0, 1], uploaded=[1, 3]))
    assert sent.tolist() == [[False, True, False, True], [False, False, False, True]]


def test_exploration_chooses_others_than_the_largest_affinities_and_ends():
    affinity = torch.tensor([[0.0, 3.0, 2.0, 1.0]] * 4)
    greedy = [False, True, False, False]
    method = FedFomo(models=1, epsilon=0.5, decay=0.05)

    def choices(rounds):
        return [method._choice(server([0], [1, 2, 3], affinity, round=round))[0].tolist() for round in rounds]

    assert any(choice != greedy for choice in choices(range(1, 11)))
    assert all(choice == greedy for choice in choices(range(11, 40)))


OPTIONS = {"hyperparameters": {"validation": 0.3}, "lr": 0.1}


def test_validation_samples_are_never_trained_on(partition, dataset):
    _, federation = after_rounds("fedfomo", dataset, partition, 2, **OPTIONS)
    for whole, kept, taken in zip(partition.train, federation.samples, federation.held_out, strict=True):
        assert len(kept) and len(taken)
        assert sorted([*kept, *taken]) == sorted(whole)
        assert set(dataset.labels[taken]) == set(dataset.labels[whole]) or len(taken) == 1


def test_affinity_adds_up_the_weights_and_traffic_counts_models_that_were_sent(dataset, partition):
    simulation, federation = after_rounds("fedfomo", dataset, partition, 1, **OPTIONS)
    assert torch.equal(federation.state["affinity"], torch.eye(6, dtype=torch.float64))
    parameters, present = federation.scalars("all"), len(federation.participants)
    assert federation.traffic.total == (0, present * parameters)
    first = set(federation.participants.tolist())
    simulation.advance()
    second = federation.participants.tolist()
    pairs = [(i, j) for i in second for j in first if j != i]
    moved = federation.state["affinity"] != torch.eye(6, dtype=torch.float64)
    assert {tuple(pair) for pair in moved.nonzero().tolist()} <= set(pairs)
    assert federation.traffic.total == (len(pairs) * parameters, present * parameters + len(pairs))


def test_the_baseline_before_training_is_what_the_client_started_from(dataset, partition):
    own = {"baseline": "before_training"}
    simulation, federation = after_rounds("fedfomo", dataset, partition, 0, lr=0.1, hyperparameters=own)
    initial = federation.store["head.weight"].clone()
    simulation.advance()
    first = federation.participants
    assert torch.equal(federation.state["before"]["head.weight"], initial)
    trained = federation.store["head.weight"].clone()
    simulation.advance()
    second = federation.participants
    starts = federation.state["before"]["head.weight"]
    assert torch.equal(starts[second], federation.received["head.weight"])
    absent = torch.tensor([i for i in range(6) if i not in second.tolist()])
    assert torch.equal(starts[absent], initial[absent])
    mixing = federation.matrices["head.weight"]
    mixed = torch.einsum("kn,n...->k...", mixing.matrix, trained)
    torch.testing.assert_close(federation.received["head.weight"], mixed, rtol=0, atol=1e-12)

    # Every model uploaded before is a candidate, the own one included, which needs no download.
    candidates = len(second) * len(first)
    own = len(set(second.tolist()) & set(first.tolist()))
    model = federation.scalars("all")
    assert own and mixing.downloads == candidates - own
    assert federation.traffic.total == (mixing.downloads * model, len(second) * model + candidates)
