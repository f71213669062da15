"""Errors after which a simulation's results are still there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pfl.core.errors import InvalidInput

if TYPE_CHECKING:
    from pfl.engine.result import Result


class NotSaved(InvalidInput):
    """The models of a simulation could not be written at its end.

    Attributes:
        results: what the simulation returns otherwise, one per seed.
    """

    results: Sequence[Result] = ()
