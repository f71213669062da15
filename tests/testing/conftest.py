"""The battery's recorded results."""

from __future__ import annotations

import pytest

from pfl.run.fingerprint import BUILTIN, AcceptedCode, Values


@pytest.fixture(scope="session")
def recorded() -> dict[str, Values]:
    """By the key of a case."""
    return AcceptedCode.load(BUILTIN).battery
