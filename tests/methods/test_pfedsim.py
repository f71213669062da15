"""pFedSim's affinity, by hand."""

import math

import pytest
import torch

from pfl.methods.pfedsim import PFedSim

CAP = 1 - 1e-4
# Two classes in two dimensions: cosines of the clients' rows are 1 for class 0 and 0.6 for class 1.
HEADS = torch.tensor([[[1.0, 0.0], [0.0, 2.0]], [[3.0, 0.0], [0.8, 0.6]]], dtype=torch.float64)


def test_the_authors_code_takes_the_log_of_the_mean_cosine():
    affinity = PFedSim(affinity="mean_then_log")._affinities(HEADS)
    assert affinity[0, 1] == pytest.approx(-math.log(1 - 0.8))


def test_equation_3_takes_the_mean_of_the_logs_each_under_the_cap():
    affinity = PFedSim(affinity="log_then_mean")._affinities(HEADS)
    assert affinity[0, 1] == pytest.approx((-math.log(1 - CAP) - math.log(1 - 0.6)) / 2)


@pytest.mark.parametrize("reading", ["mean_then_log", "log_then_mean"])
def test_equal_heads_reach_the_cap_and_opposite_ones_have_no_affinity(reading):
    heads = torch.stack([HEADS[0], HEADS[0], -HEADS[0]])
    affinity = PFedSim(affinity=reading)._affinities(heads)
    assert affinity[0, 1] == pytest.approx(-math.log(1 - CAP))
    assert affinity[0, 2] == 0


def test_a_dead_class_row_has_cosine_zero():
    heads = torch.tensor([[[1.0, 0.0], [0.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]], dtype=torch.float64)
    assert PFedSim()._affinities(heads)[0, 1] == pytest.approx(-math.log(0.5))
