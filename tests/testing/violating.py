"""What a conformance kit says of a broken component."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pfl.testing import Violations


@contextmanager
def violates(rule: str, line: str) -> Iterator[None]:
    """A context in which a check must report ``rule`` alone, in one line that ``line`` matches."""
    with pytest.raises(Violations, match=line) as caught:
        yield
    assert list(caught.value.lines) == [rule]
    assert len(str(caught.value).splitlines()) == 2
