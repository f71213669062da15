"""Shared checks of what a method's hooks return, and their messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import keystr, tree_leaves_with_path

from pfl.core.errors import InvalidInput


def check_tensor(where: str, value: Any, shape: Sequence[int], accepted: str = "a tensor") -> None:
    """Check what the hook ``where`` returned, or a part of it.

    Raises:
        InvalidInput: it is not a tensor of this ``shape``.
    """
    if not isinstance(value, Tensor):
        raise wrong_type(where, value, f"{accepted} of shape {tuple(shape)}")
    if value.shape != shape:
        raise InvalidInput(
            where, f"a tensor of shape {tuple(value.shape)}", f"{accepted} of shape {tuple(shape)}"
        )


def check_scores(where: str, scores: Any, images: int, classes: int | None = None) -> None:
    """Check logits or scores of a number of ``images``, by default for any number of classes.

    Raises:
        InvalidInput: they are not a tensor (images, classes); the message names the hook ``where``.
    """
    counted = isinstance(scores, Tensor) and scores.dim() == 2 and scores.shape[0] == images
    if counted and classes in (None, scores.shape[1]):
        return
    accepted = f"a tensor (images, classes) of shape ({images}, {'classes' if classes is None else classes})"
    if not isinstance(scores, Tensor):
        raise wrong_type(where, scores, accepted)
    raise InvalidInput(where, f"a tensor of shape {tuple(scores.shape)}", accepted)


def check_stacks(where: str, nested: Any, *rows: int) -> None:
    """Check tensors, nested by name, that the hook ``where`` returned or stored.

    Args:
        rows: accepted lengths of their first dimension; by default any shape.

    Raises:
        InvalidInput: one is not a dense tensor without gradient, or has another length.
    """
    accepted = f"a tensor ({' or '.join(map(str, rows))}, ...)" if rows else "a tensor"
    for path, value in tree_leaves_with_path(nested):
        place = f"{where}{keystr(path)}"
        if not isinstance(value, Tensor):
            raise InvalidInput(place, f"a value of type {type(value).__name__}", accepted)
        if rows and (not value.dim() or len(value) not in rows):
            raise InvalidInput(place, f"a tensor of shape {tuple(value.shape)}", accepted)
        if value.requires_grad or value.layout != torch.strided:
            kind = "a tensor that requires a gradient" if value.requires_grad else "a sparse tensor"
            raise InvalidInput(place, kind, "a dense tensor without gradient; use detach() or to_dense()")


def name_of(method: object, hook: str) -> str:
    """The name of a ``hook`` in messages, as in "FedAvg.aggregate"."""
    return f"{type(method).__name__}.{hook}"


def wrong_type(where: str, returned: Any, accepted: str) -> InvalidInput:
    """The error for a return value whose type is not ``accepted``."""
    return InvalidInput(where, f"a return value of type {type(returned).__name__}", accepted)
