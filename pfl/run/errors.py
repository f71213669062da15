"""Errors of a simulation: `NotSaved`, which keeps the results, and one-line causes of other errors."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pfl.core import memory
from pfl.core.errors import InvalidInput
from pfl.core.text import first_line

if TYPE_CHECKING:
    from pfl.engine.result import Result


class NotSaved(InvalidInput):
    """The models of a simulation could not be written at its end.

    Attributes:
        results: the results of the simulation, one per seed.
    """

    results: Sequence[Result] = ()


@contextmanager
def saving(path: str, results: Sequence[Result]) -> Iterator[None]:
    """A context that turns an `OSError` on writing the models to ``path`` into a `NotSaved`."""
    try:
        yield
    except OSError as error:
        not_saved = NotSaved("save", path, f"a file that can be written ({error.strerror})")
        not_saved.results = results
        raise not_saved from None


def cause_of(error: BaseException) -> str:
    """Why a simulation failed, in one line."""
    if isinstance(error, InvalidInput):
        return str(error)
    if memory.is_out_of_memory(error):
        return f"out of memory ({first_line(error)})"
    return f"{type(error).__name__}: {first_line(error)}"


def trace_of(error: BaseException) -> str | None:
    """The traceback of an error; None if its one-line cause suffices (invalid input, out of memory)."""
    if isinstance(error, InvalidInput) or memory.is_out_of_memory(error):
        return None
    return "".join(traceback.format_exception(error))
