"""Similarities, on cases that can be computed by hand."""

from __future__ import annotations

import pytest
import torch

from pfl.analysis.similarity import (
    angles,
    class_cosines,
    data_similarity,
    head_distances,
    pairwise_cka,
)


def test_data_similarity_is_the_share_of_samples_in_common_classes():
    counts = torch.tensor([[3.0, 1.0, 0.0], [0.0, 2.0, 2.0], [0.0, 0.0, 5.0]])
    # clients 0 and 1: 1 + 2 of 8 samples; 1 and 2: 2 + 5 of 9; 0 and 2: none
    expected = [[1, 3 / 8, 0], [3 / 8, 1, 7 / 9], [0, 7 / 9, 1]]
    assert data_similarity(counts).numpy() == pytest.approx(torch.tensor(expected).numpy())


def test_class_cosines_compare_heads_row_by_row():
    heads = torch.tensor([[[1.0, 0.0], [1.0, 1.0]], [[0.0, 2.0], [3.0, 3.0]], [[0.0, 0.0], [-1.0, -1.0]]])
    cosines = class_cosines(heads)
    assert cosines[0, 0].tolist() == [1, 0, 0]  # the third client's row is 0
    assert cosines[1, 0].tolist() == pytest.approx([1, 1, -1])


def test_angles_are_taken_over_all_tensors_together():
    updates = {"a": torch.tensor([[1.0], [0.0]]), "b": torch.tensor([[0.0, 0.0], [0.0, 2.0]])}
    assert angles(updates)[0, 1] == pytest.approx(90)
    opposite = {"a": torch.tensor([[1.0], [-2.0]])}
    assert angles(opposite)[0, 1] == pytest.approx(180)


def test_head_distances_are_relative_to_the_farthest_in_the_row():
    heads = torch.tensor([[[0.0]], [[1.0]], [[3.0]]])
    assert head_distances(heads)[0].tolist() == pytest.approx([0, 1 / 9, 1])
    assert head_distances(heads)[1].tolist() == pytest.approx([1 / 4, 0, 1])
    assert head_distances(torch.ones(2, 3, 4)).tolist() == [[0, 0], [0, 0]]


def test_cka_sees_neither_rotation_nor_scale_nor_shift():
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    rotation, _ = torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(1)))
    assert pairwise_cka([x, 5 * x @ rotation + 7])[0, 1] == pytest.approx(1, abs=1e-6)


def test_cka_of_representations_without_anything_in_common_is_zero():
    x = torch.tensor([[1.0], [1.0], [-1.0], [-1.0]])
    y = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    constant = torch.ones(4, 2)
    cka = pairwise_cka([x, y, constant])
    assert cka[0, 1] == pytest.approx(0)
    assert cka[0, 2] == 0


def test_cka_is_the_cosine_of_centred_gram_matrices():
    x = torch.tensor([[1.0], [-1.0], [0.0]])  # gram [[1, -1, 0], [-1, 1, 0], [0, 0, 0]], of norm 2
    y = torch.tensor([[1.0], [0.0], [-1.0]])  # product of the two: 1
    assert pairwise_cka([x, y])[0, 1] == pytest.approx(1 / 4)
