"""Nested dictionaries of tensors, as pytrees: a method's state, and what else is stored per client."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map

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
