"""The method and the network meet the rules of the conformance kits."""

from __future__ import annotations

from my_method.tiny_mlp import tiny_mlp
from my_method.warmhead import WarmHead

from pfl.testing import check_method, check_network


def test_the_method():
    check_method(WarmHead)


def test_the_network():
    check_network(tiny_mlp)
