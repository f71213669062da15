"""FedAMP's attention, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from pfl.methods.fedamp import FedAMP
from tests.methods import quadratic, toy

# Squared distances between the models: 0-1 is 1, 0-2 is 4, 1-2 is 5; 3 equals 0.
MODELS = {
    "a": torch.tensor([[0.0], [1.0], [0.0], [0.0]], dtype=torch.float64),
    "b": torch.tensor([[0.0], [0.0], [2.0], [0.0]], dtype=torch.float64),
}


def attention(own, models=MODELS, **hyper):
    rows = torch.tensor(own)
    mine = {name: stack[rows] for name, stack in models.items()}
    return FedAMP(**hyper)._attention(mine, models, rows)


def test_a_row_of_the_raw_form():
    (row,) = attention([0], form="raw", alpha=0.5, sigma=2.0).tolist()
    others = [0.25 * math.exp(-1 / 2), 0.25 * math.exp(-4 / 2), 0.25]
    assert row == pytest.approx([1 - sum(others), *others])


def test_the_raw_form_never_has_a_negative_weight():
    (row,) = attention([0], form="raw", alpha=100.0, sigma=10.0).tolist()
    others = [math.exp(-1 / 10) / 3, math.exp(-4 / 10) / 3, 1 / 3]
    assert row == pytest.approx([1 - sum(others), *others])


def test_a_row_of_the_scale_free_form():
    # The participants' positive distances are 1, 4 (of 0) and 1, 5, 1 (of 1): their median is 1.
    rows = attention([0, 1], kappa=0.6, scale=2.0)
    others = [0.2 * math.exp(-1 / 2), 0.2 * math.exp(-4 / 2), 0.2]
    assert rows[0].tolist() == pytest.approx([1 - sum(others), *others])


def test_the_scale_free_form_does_not_depend_on_the_scale_of_the_models():
    larger = {name: 1000 * stack for name, stack in MODELS.items()}
    torch.testing.assert_close(attention([0, 1], larger), attention([0, 1]))


def test_equal_models_share_kappa_equally():
    equal = {"a": torch.ones(4, 3, dtype=torch.float64)}
    (row,) = attention([1], equal, kappa=0.6).tolist()
    assert row == pytest.approx([0.2, 0.4, 0.2, 0.2])


def test_a_row_of_the_heuristic_form():
    models = {"a": torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 0.0]], dtype=torch.float64)}
    (row,) = attention([0], models, form="heur", sigma=3.0, self_weight=0.2).tolist()
    total = math.exp(3 * 0.6) + 1  # a model of zeros has cosine 0
    assert row == pytest.approx([0.2, 0.8 * math.exp(3 * 0.6) / total, 0.8 / total])


@pytest.mark.parametrize("form", ["raw", "scale_free", "heur"])
def test_a_client_alone_is_drawn_to_itself(form):
    assert attention([0], {"a": torch.ones(1, 2)}, form=form).tolist() == [[1.0]]


def test_the_loss_holds_the_distance_to_the_cloud_model():
    client = quadratic.client([1.0, 0.0], cloud=[0.0, 2.0])
    _, loss = FedAMP(mu=0.4)._proximal(client, (toy.batch([[1.0, 1.0]], [0]),))  # one class: no cross-entropy
    assert loss.item() == pytest.approx(0.4 / 2 * (1 + 4))
