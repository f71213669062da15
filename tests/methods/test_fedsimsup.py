"""FedSimSup's alpha and W, by hand (Eq. 8 and 9)."""

from types import SimpleNamespace

import pytest
import torch

from pfl.config import Config
from pfl.methods.fedsimsup import FedSimSup


def mixing(sizes, label_counts, participants):
    server = SimpleNamespace(
        sizes=torch.tensor(sizes, dtype=torch.float64),
        label_counts=torch.tensor(label_counts, dtype=torch.float64),
        participants=torch.tensor(participants),
        clients=len(sizes),
        state={},
    )
    FedSimSup().initialise(server)
    return FedSimSup().aggregate(server)["model"]


def test_an_absent_client_mixes_the_participants_by_label_similarity():
    # Client 0 is absent; its labels are those of client 1 (cosine 1), and 0.6 like those of client 2.
    dense = mixing([50, 400, 600], [[5, 0], [7, 0], [6, 8]], participants=[1, 2])
    alpha = 50 / (50 + 500)
    assert dense.rows.tolist() == [0]
    assert dense.own.tolist() == pytest.approx([alpha])
    assert dense.matrix[0].tolist() == pytest.approx([(1 - alpha) * 1 / 1.6, (1 - alpha) * 0.6 / 1.6])


def test_equal_sizes_keep_half():
    dense = mixing([10, 10, 10], [[1, 1], [1, 2], [0, 1]], participants=[2])
    assert dense.own.tolist() == [0.5, 0.5]


def test_a_client_without_a_common_label_keeps_its_model():
    dense = mixing([10, 10], [[1, 0], [0, 1]], participants=[1])
    assert dense.own.tolist() == [1.0]
    assert dense.matrix.tolist() == [[0.0]]


def test_full_participation_is_a_warning_not_an_error():
    config = Config(method="fedsimsup", participation=1.0).validated()
    assert any("nothing is mixed" in line for line in config.warnings())
    assert Config(method="fedsimsup", participation=0.5).validated().warnings() == ()
