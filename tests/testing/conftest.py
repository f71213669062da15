"""The battery's recorded results."""

from __future__ import annotations

import pytest

from pfl.data.partitions import PARTITIONS
from pfl.run.fingerprint import BUILTIN, AcceptedCode, Values


@pytest.fixture(scope="session")
def recorded() -> dict[str, Values]:
    """By the key of a case."""
    return AcceptedCode.load(BUILTIN).battery


@pytest.fixture(autouse=True)
def _no_rule_outlives_its_test(monkeypatch):
    """`check_partition` adds a rule that is not registered, even one that breaks what others rely on."""
    monkeypatch.setattr(PARTITIONS, "_added", dict(PARTITIONS._added))
