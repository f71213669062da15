"""Shares of integers."""

import pytest

from pfl.core.config import Config
from pfl.core.rounding import whole_part


@pytest.mark.parametrize(
    ("share", "total", "whole"),
    [(0.29, 100, 29), (0.1, 100, 10), (0.0, 7, 0), (0.199, 10, 1), (1.0, 3, 3), (0.57, 100, 57)],
)
def test_a_share_of_a_total_is_rounded_down_as_its_decimals_say(share, total, whole):
    assert whole_part(share, total) == whole


def test_a_round_has_at_least_one_participant():
    assert Config(participation=0.01).participants(20) == 1
    assert Config(participation=0.29).participants(100) == 29
