"""Nested tensors: a method's state, and what else training carries along, as a pytree of dictionaries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map

Tree = Tensor | dict[str, "Tree"]
"""A tensor, or a dictionary of them by name, at any depth."""

State = dict[str, Any]
"""Name to `Tree`, as in ``state["alpha"]`` and ``state["variate"]["head.bias"]``. The type is Any, since only
the method knows which of its names is a tensor and which a dictionary."""


def rows(state: Mapping[str, Any], which: Any) -> State:
    """The rows ``which``, an index, of each tensor in ``state``."""
    chosen: State = tree_map(lambda stack: stack[which], dict(state))
    return chosen


def joined(join: Callable[[list[Tensor]], Tensor], states: Sequence[Mapping[str, Any]]) -> State:
    """What ``join``, as `torch.cat`, returns for each tensor of several alike ``states``."""
    together: State = tree_map(lambda *parts: join([*parts]), *map(dict, states))
    return together
