"""The battery's recorded results."""

from __future__ import annotations

import pytest

from pfl.run.fingerprint import BUILTIN, Accepted, Values


@pytest.fixture(scope="session")
def recorded() -> dict[str, Values]:
    """By the key of a case."""
    return Accepted.load(BUILTIN).battery
