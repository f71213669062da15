"""A device that is not the host, emulated on the host, for machines without a GPU.

Inside `emulated`, tensors that are brought to `DEVICE` are computed in host memory, but behave as on a GPU:
they do not mix with the host's, have no numpy view, and where the host reads a number of them, it waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("meta")  # the only one that autograd drives without hardware

aten = torch.ops.aten
READS = (
    aten._local_scalar_dense.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten.equal.default,
)
"""Operations whose result the host has to know."""
INDEXING = (aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default)
CONSTRUCTORS = (torch.tensor, torch.as_tensor)
SUBSCRIPTS = (Tensor.__getitem__, Tensor.__setitem__)


@contextmanager
def emulated() -> Iterator[Counter[str]]:
    """There is a device `DEVICE`; gives what the host has waited for on it, by operation."""
    waits: Counter[str] = Counter()
    with _Operations(waits), _Python():
        yield waits


class OnDevice(Tensor):
    """A tensor on the device; ``held`` is its content."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> OnDevice:
        made = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=DEVICE,
        )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        raise AssertionError(f"{func}: outside of the emulation")

    def tolist(self) -> list[Any]:
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> np.ndarray:
        if not force:
            raise TypeError("a tensor on the device has no numpy view")
        return self.detach().cpu().numpy()


class _Operations(TorchDispatchMode):
    """Runs every operation on what the tensors hold, and minds where they are."""

    def __init__(self, waits: Counter[str]):
        super().__init__()
        self.waits = waits

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        theirs = any(isinstance(value, OnDevice) for value in tree_leaves((args, kwargs)))
        place = kwargs.get("device")
        if place is not None:
            kwargs["device"] = torch.device("cpu")
        gives = theirs if place is None else torch.device(place) == DEVICE
        self._count(func, args, leaves=theirs and not gives)
        if theirs and func not in (aten._to_copy.default, aten.copy_.default):
            _assert_together(func, args, kwargs)
        found = func(*tree_map(_held, args), **tree_map(_held, kwargs))
        if not gives:
            return args[0] if func is aten.copy_.default else found
        found = tree_map(lambda value: OnDevice(value) if isinstance(value, Tensor) else value, found)
        return return_and_correct_aliasing(func, args, kwargs, found) if theirs else found

    def _count(self, func: Any, args: Sequence[Any], leaves: bool) -> None:
        """Note where the host waits: a GPU's tensor is brought to it, read, or indexed by a mask."""
        on_device = any(isinstance(value, OnDevice) for value in tree_leaves(args))
        masked = func in INDEXING and any(
            index is not None and index.dtype is torch.bool for index in args[1]
        )
        if leaves or (on_device and (func in READS or masked)):
            self.waits[str(func)] += 1


def _held(value: Any) -> Any:
    return value.held if isinstance(value, OnDevice) else value


def _assert_together(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """As on a GPU: only scalars, and indices into a tensor of the device, may be the host's."""
    operands = [args[0], *args[2:]] if func in INDEXING else [args, kwargs]
    for value in tree_leaves(operands):
        if isinstance(value, Tensor) and not isinstance(value, OnDevice) and value.dim():
            raise RuntimeError(f"{func}: {tuple(value.shape)} is on the host, the others are on the device")


class _Python(TorchFunctionMode):
    """Makes on the host what torch would make on the device straight from Python's numbers."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in CONSTRUCTORS and kwargs.get("device") is not None:
            device = kwargs.pop("device")
            return func(*args, **kwargs).to(device)
        theirs = bool(args) and isinstance(args[0], OnDevice)
        if theirs and func is Tensor.new_tensor:
            return torch.tensor(args[1], dtype=kwargs.get("dtype", args[0].dtype)).to(DEVICE)
        if theirs and func in SUBSCRIPTS and isinstance(args[1], list):
            args = (args[0], torch.tensor(args[1]), *args[2:])
        return func(*args, **kwargs)
