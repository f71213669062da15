"""Names that must be known."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pfl.core.errors import unknown_name


def check_names(parameter: str, names: Iterable[str], known: Collection[str]) -> None:
    """Check that all ``names`` are known.

    Raises:
        InvalidInput: for the first that is not; the message has the known names, or the closest ones.
    """
    for name in names:
        if name not in known:
            raise unknown_name(parameter, name, known)
