"""Mixing matrices and the bank that they act on."""

import pytest
import torch

from pfl.engine.mixing import Average, Bank, Dense, Identity, check_rows


def test_a_shared_tensor_is_stored_once_until_a_row_is_written():
    bank = Bank({"w": torch.zeros(1, 3)}, clients=1000)
    assert bank.tensors["w"].numel() == 3
    bank.write("w", torch.tensor([7]), torch.ones(1, 3))
    assert bank["w"].sum(1).nonzero().flatten().tolist() == [7]


def test_dense_rows_read_a_snapshot():
    bank = Bank({"w": torch.tensor([[1.0], [2.0], [4.0]])}, clients=3)
    shift = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    bank.mix("w", Dense(shift))
    assert bank["w"].flatten().tolist() == [2.0, 4.0, 1.0]


def test_dense_with_own_weight_changes_only_its_rows():
    bank = Bank({"w": torch.tensor([[1.0], [2.0], [4.0]])}, clients=3)
    matrix = Dense(
        torch.tensor([[0.25, 0.25]]),
        rows=torch.tensor([2]),
        sources=torch.tensor([0, 1]),
        own=torch.tensor([0.5]),
    )
    bank.mix("w", matrix)
    assert bank["w"].flatten().tolist() == [1.0, 2.0, 0.25 * 1 + 0.25 * 2 + 0.5 * 4]


@pytest.mark.parametrize(
    "matrix",
    [
        Average(torch.tensor([0.5, 0.6])),
        Dense(torch.tensor([[0.5, 0.4]])),
        Dense(torch.tensor([[1.5, -0.5]])),
        Dense(torch.tensor([[0.5, 0.5]]), own=torch.tensor([0.1])),
    ],
)
def test_rows_that_do_not_sum_to_one_are_refused(matrix):
    with pytest.raises(AssertionError, match="sum to 1"):
        check_rows(matrix)


def test_the_identity_passes():
    check_rows(Identity())
