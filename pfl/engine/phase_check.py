"""Checks of a local program: of its phases before a backend runs them, and of what its hooks return."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from types import MethodType
from typing import Any

from torch import Tensor
from torch.utils._pytree import keystr, tree_leaves_with_path

from pfl.core.errors import InvalidInput
from pfl.engine.client import Batch, Client, Step
from pfl.engine.groups import Groups
from pfl.engine.method import Method, Phase

Shape = tuple[int, ...]


def check_phases(where: str, phases: Any, groups: Groups) -> None:
    """Check a local program, which ``where`` returned or gave.

    Raises:
        InvalidInput: it is no tuple of phases, or a phase has an unknown group, nothing to train or an
            impossible number.
    """
    if not isinstance(phases, tuple | list):
        raise InvalidInput(where, f"a return value of type {type(phases).__name__}", "a tuple of Phase(...)")
    for phase in phases:
        if not isinstance(phase, Phase):
            raise InvalidInput(where, f"a value of type {type(phase).__name__}", "a tuple of Phase(...)")
        for name in _NUMBERS:
            _check_number(where, name, getattr(phase, name))
        for name in ("loss", "gradient", "step"):
            if not (getattr(phase, name) is None or callable(getattr(phase, name))):
                raise InvalidInput(f"{where}: Phase({name})", getattr(phase, name), "a function or None")
        if not isinstance(phase.trains, tuple | list):
            raise InvalidInput(f"{where}: Phase(trains)", repr(phase.trains), "a tuple of groups")
        try:
            trained = groups.trained(phase.trains)
        except InvalidInput as error:
            error.locate(f"{where}: Phase(trains)")
            raise
        if not trained and phase.step is None:
            accepted = "groups of which one has parameters, or a step of its own"
            raise InvalidInput(f"{where}: Phase(trains)", repr(phase.trains), accepted)


_NUMBERS = {
    "epochs": (Real, 0, "a non-negative number or None"),
    "steps": (Integral, 0, "a non-negative integer or None"),
    "batch_size": (Integral, 1, "a positive integer or None"),
    "lr": (Real, -math.inf, "a finite number"),
    "repeat": (Integral, 1, "a positive integer"),
    "batches": (Integral, 1, "a positive integer"),
    "noise": (Integral, 0, "a non-negative integer"),
}
"""The type and the least value of each number of a phase."""


def _check_number(where: str, name: str, value: Any) -> None:
    kind, least, accepted = _NUMBERS[name]
    if value is None and getattr(Phase, name) is None:
        return
    if not isinstance(value, kind) or not math.isfinite(value) or value < least:
        raise InvalidInput(f"{where}: Phase({name})", value, accepted)


def with_checks(phase: Phase, method: Method, classes: int) -> Phase:
    """``phase`` with hooks that check what they return, and what `loss` and `logits` of ``method`` return.

    The hooks raise `InvalidInput` if it has another type or shape; the message names the method and the hook.
    """
    checking = copy.copy(method)
    own_logits, own_loss = checking.logits, checking.loss

    def where(hook: str) -> str:
        return f"{type(method).__name__}: Phase({hook})"

    def rebound(hook: Any) -> Any:
        return MethodType(hook.__func__, checking) if getattr(hook, "__self__", None) is method else hook

    def logits(client: Client, x: Tensor) -> Tensor:
        values = own_logits(client, x)
        check_scores(name_of(method, "logits"), values, len(x), classes)
        return values

    def loss(client: Client, batch: Batch) -> Tensor:
        value = own_loss(client, batch)
        check_tensor(name_of(method, "loss"), value, ())
        return value

    def minimised(client: Client, batch: Batch) -> Tensor:
        hook = where("loss") if phase.loss else name_of(method, "loss")
        value: Tensor = rebound(phase.loss or method.loss)(client, batch)
        check_tensor(hook, value, ())
        if client.trained and not value.requires_grad:
            raise InvalidInput(hook, "a constant", "a loss that depends on the parameters in training")
        return value

    def gradient(client: Client, batches: tuple[Batch, ...]) -> tuple[Mapping[str, Tensor], Tensor]:
        returned = rebound(phase.gradient)(client, batches)
        hook = where("gradient")
        accepted = "a mapping from the parameters in training to tensors, and the loss"
        if not (isinstance(returned, Sequence) and len(returned) == 2 and isinstance(returned[0], Mapping)):
            raise wrong_type(hook, returned, accepted)
        direction, value = returned
        for name, weight in client.weights.items():
            if name not in direction:
                raise InvalidInput(hook, f"a mapping without {name!r}", accepted)
            check_tensor(f"{hook}: {name}", direction[name], tuple(weight.shape))
        check_tensor(f"{hook}: loss", value, ())
        return direction, value

    def step(client: Client, batches: tuple[Batch, ...], lr: float | Tensor) -> Step:
        stepped = rebound(phase.step)(client, batches, lr)
        hook = where("step")
        if not isinstance(stepped, Step):
            raise wrong_type(hook, stepped, "a Step(...)")
        for name, value in stepped.params.items():
            if name not in client.trained:
                raise InvalidInput(f"{hook}: params", repr(name), "names of parameters in training")
            check_tensor(f"{hook}: {name}", value, tuple(client.params[name].shape))
        check_tensor(f"{hook}: loss", stepped.loss, ())
        return stepped

    vars(checking).update(logits=logits, loss=loss)
    return dataclasses.replace(
        phase, loss=minimised, gradient=phase.gradient and gradient, step=phase.step and step
    )


def check_scores(where: str, scores: Any, images: int, classes: int) -> None:
    """Check what the hook ``where``, `logits` or `scores`, returned for a number of ``images``.

    Raises:
        InvalidInput: it is no tensor (images, classes).
    """
    check_tensor(where, scores, (images, classes), "a tensor (images, classes)")


def check_tensor(where: str, value: Any, shape: Shape, accepted: str = "a tensor") -> None:
    """Check what the hook ``where`` returned, or a part of it.

    Raises:
        InvalidInput: it is no tensor of that ``shape``.
    """
    accepted = f"{accepted} of shape {shape}"
    if not isinstance(value, Tensor):
        raise wrong_type(where, value, accepted)
    if value.shape != shape:
        raise InvalidInput(where, f"a tensor of shape {tuple(value.shape)}", accepted)


def check_stacks(where: str, nested: Any, *rows: int) -> None:
    """Check tensors, nested by name, that the hook ``where`` returned or stored.

    Args:
        rows: accepted lengths of the first dimension of each; by default any shape.

    Raises:
        InvalidInput: one is no tensor, or has another length.
    """
    accepted = f"a tensor ({' or '.join(map(str, rows))}, ...)" if rows else "a tensor"
    for path, value in tree_leaves_with_path(nested):
        place = f"{where}{keystr(path)}"
        if not isinstance(value, Tensor):
            raise InvalidInput(place, f"a value of type {type(value).__name__}", accepted)
        if rows and (not value.dim() or len(value) not in rows):
            raise InvalidInput(place, f"a tensor of shape {tuple(value.shape)}", accepted)


def name_of(method: Method, hook: str) -> str:
    """The ``method`` and its ``hook``, as messages name them."""
    return f"{type(method).__name__}.{hook}"


def wrong_type(where: str, returned: Any, accepted: str) -> InvalidInput:
    """The error for a return value of another type than is ``accepted``."""
    return InvalidInput(where, f"a return value of type {type(returned).__name__}", accepted)
