"""The line with which a call refuses its input."""

from collections.abc import Callable

import pytest

from pfl.core.errors import InvalidInput


def refusal(function: Callable, *arguments: object, **options: object) -> str:
    """What ``function`` says of input that it does not accept, which must be one line."""
    with pytest.raises(InvalidInput) as caught:
        function(*arguments, **options)
    line = str(caught.value)
    assert "\n" not in line
    return line
