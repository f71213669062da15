"""FedPAC's simplex problem against brute force, its statistics and its local objective."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pfl.core.config import Config
from pfl.engine.mixing import normalised
from pfl.methods.fedpac import FedPAC, _combination, on_simplex
from pfl.run.validation import validated, warnings_of
from tests.methods.toy import after_rounds, batch, client, features_of, with_and_without_padding


def brute_force(form: np.ndarray) -> np.ndarray:
    """The minimiser of a^T Q a on the simplex: the best of the stationary points of all its faces."""
    candidates = []
    for size in range(1, len(form) + 1):
        for face in itertools.combinations(range(len(form)), size):
            inside = np.linalg.solve(form[np.ix_(face, face)], np.ones(size))
            a = np.zeros(len(form))
            a[list(face)] = inside / inside.sum()
            if (a >= 0).all():
                candidates.append(a)
    return min(candidates, key=lambda a: a @ form @ a)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e6])
def test_the_simplex_problem_equals_the_brute_force_optimum(seed, scale):
    stream = np.random.default_rng(seed)
    h, v = stream.normal(1, 1, (6, 2, 3)), stream.uniform(0.05, 1, 6)
    forms = [
        np.array([[((h[i] - h[j]) * (h[i] - h[k])).sum() for k in range(6)] for j in range(6)]) + np.diag(v)
        for i in range(6)
    ]
    optima = on_simplex(torch.from_numpy(scale * np.stack(forms)))
    combined = _combination(torch.from_numpy(h), torch.from_numpy(v))

    for i, form in enumerate(forms):
        best = brute_force(form)
        assert optima[i].numpy() == pytest.approx(best, abs=1e-9)
        assert combined[i].numpy() == pytest.approx(best, abs=1e-9)
    assert (optima == 0).any(), "some optimum lies on the boundary"


def test_a_singular_problem_is_solved_too():
    # Without variance a copy of the client is as good as itself: only their common weight is determined.
    weights = _combination(torch.tensor([[[1.0]], [[1.0]], [[5.0]]]).double(), torch.zeros(3).double())
    assert weights[0, :2].sum() == pytest.approx(1, abs=1e-7)
    assert (weights >= 0).all()


def test_numbers_out_of_range_leave_everybody_its_own_head():
    assert torch.equal(on_simplex(torch.full((2, 2, 2), math.nan)), torch.eye(2))


def test_weights_below_a_thousandth_are_left_out():
    server = SimpleNamespace(
        label_counts=torch.tensor([[4.0], [4.0]]).double(),
        participants=torch.tensor([0, 1]),
        # a = (1 + v1) / (1 + v0 + v1), so the other client has 0.0005 / 1.0010
        state={
            "means": torch.tensor([[[1.0]], [[0.0]]]).double(),
            "variances": torch.tensor([5e-4, 5e-4]).double(),
        },
    )
    assert torch.equal(FedPAC()._heads(server).matrix, torch.eye(2).double())


def test_statistics_are_of_the_received_extractor_and_prototypes_of_the_trained_one(dataset, partition):
    simulation, server = after_rounds("fedpac", dataset, partition, 1)
    totals = torch.zeros(4, 84, dtype=torch.float64)
    for k, number in enumerate(server.participants.tolist()):
        samples = server.samples[number]
        z, y = features_of(simulation, server.received, k, samples)
        h = torch.stack([z[y == c].sum(0) / len(y) for c in range(4)])
        v = (z.square().sum(1).mean() - h.square().sum()) / len(y)
        scaled = normalised(server.label_counts[number])[:, None] * server.state["means"][k]
        torch.testing.assert_close(scaled, h)
        assert server.state["variances"][k] == pytest.approx(float(v))
        z, y = features_of(simulation, server.trained, k, samples)
        totals += torch.stack([z[y == c].sum(0) for c in range(4)])

    counts = server.label_counts[server.participants].sum(0)
    known = counts > 0
    torch.testing.assert_close(server.state["prototypes"][known], totals[known] / counts[known, None])
    assert torch.equal(server.state["known"], known)


def test_a_class_without_a_prototype_is_drawn_to_the_client_s_own_mean():
    server = SimpleNamespace(
        federation=SimpleNamespace(dtype=torch.float64),
        state={
            "known": torch.tensor([True, False]),
            "prototypes": torch.tensor([[1.0], [0.0]]).double(),
            "means": torch.tensor([[[5.0], [6.0]], [[7.0], [8.0]]]).double(),
        },
    )
    assert FedPAC()._targets(server).tolist() == [[[1.0], [6.0]], [[1.0], [8.0]]]


@with_and_without_padding
def test_the_extractor_s_loss_adds_the_mean_square_to_the_targets(padded):
    targets = torch.tensor([[3.0, 0.0], [5.0, 1.0]], dtype=torch.float64)
    participant = client([[0.0, 0.0], [0.0, 0.0]], {"targets": targets})

    # Over two coordinates, 4 / 2 and 16 / 2; over two samples, 5.
    loss = FedPAC(lam=0.1)._aligned(participant, batch([[1.0, 0.0], [5.0, 5.0]], [0, 1], padded))
    assert loss.item() == pytest.approx(math.log(2) + 0.1 * 5)


def test_the_first_round_has_no_prototype_term(dataset, partition):
    _, server = after_rounds("fedpac", dataset, partition, 1)
    head, extractor = FedPAC().phases(server)
    assert (head.loss, extractor.loss) == (None, None)
    server.round = 2
    assert FedPAC().phases(server)[1].loss is not None


def test_the_head_s_epochs_are_part_of_the_configuration_s():
    server = SimpleNamespace(config=Config(epochs=5), round=2)
    assert [phase.epochs for phase in FedPAC().phases(server)] == [1, 4]
    assert warnings_of(validated(Config(method="fedpac", epochs=5))) == ()
    assert len(warnings_of(validated(Config(method="fedpac", epochs=1)))) == 1
