"""Errors of a simulation: one after which its results are still there, and the causes of others in a line."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pfl.core import memory
from pfl.core.errors import InvalidInput
from pfl.core.lazy import torch
from pfl.core.text import first_line

if TYPE_CHECKING:
    from pfl.engine.result import Result


class NotSaved(InvalidInput):
    """The models of a simulation could not be written at its end.

    Attributes:
        results: what the simulation returns otherwise, one per seed.
    """

    results: Sequence[Result] = ()


def cause_of(error: BaseException) -> str:
    """Why a simulation failed, in a line."""
    if memory.ran_out(error):
        return f"out of memory ({first_line(error)})"
    return _unstackable(error) or f"{type(error).__name__}: {first_line(error)}"


def _unstackable(error: BaseException) -> str | None:
    """Which line of a method or a network the stacked backend cannot run; None for other errors."""
    if not isinstance(error, RuntimeError) or not str(error).startswith("vmap: "):
        return None
    library = str(Path(torch.__file__).parent)
    frames = traceback.extract_tb(error.__traceback__)
    *_, last = (frame for frame in frames if not frame.filename.startswith(library))
    return (
        f"{last.filename}:{last.lineno}: the stacked backend cannot run '{last.line}': it "
        "trains all clients at once, without values of tensors (as in if or .item()), shapes that follow "
        "from them, or torch's random numbers; use torch.where and the noise of a phase, or the backend loop"
    )


def trace_of(error: BaseException) -> str | None:
    """The traceback of an error whose cause in a line does not tell how to fix it; None for other errors."""
    if isinstance(error, InvalidInput) or memory.ran_out(error) or _unstackable(error):
        return None
    return "".join(traceback.format_exception(error))
