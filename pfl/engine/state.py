"""Nested dictionaries of tensors, as pytrees: a method's state, and what else is stored per client."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

Tree = Tensor | dict[str, "Tree"]
"""A tensor, or a dictionary of trees by name."""

State = dict[str, Any]
"""Name to `Tree`, as in ``state["alpha"]`` and ``state["variate"]["head.bias"]``. The type is Any because
only the method knows which names are tensors and which are dictionaries."""


def rows(state: Mapping[str, Any], which: Any) -> State:
    """Each tensor in ``state``, indexed by ``which``."""
    chosen: State = tree_map(lambda stack: stack[which], dict(state))
    return chosen


def joined(join: Callable[[list[Tensor]], Tensor], states: Sequence[Mapping[str, Any]]) -> State:
    """Join ``states`` of the same structure tensor by tensor, for example with `torch.cat`."""
    together: State = tree_map(lambda *parts: join([*parts]), *map(dict, states))
    return together


def memory(tensors: Any) -> set[int]:
    """Identifies the memory of nested ``tensors``, for `apart`."""
    leaves = filter(torch.is_tensor, tree_leaves(tensors))
    return {tensor.untyped_storage()._cdata for tensor in leaves}


def apart(values: Any, written: Set[int]) -> Any:
    """``values`` in tuples and mappings, copied where they lie in memory that is ``written`` meanwhile."""
    if isinstance(values, Tensor):
        return values.clone() if values.untyped_storage()._cdata in written else values
    if isinstance(values, Mapping):
        return {name: apart(value, written) for name, value in values.items()}
    return tuple(apart(value, written) for value in values)
