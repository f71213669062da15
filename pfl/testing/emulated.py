"""An accelerator emulated on the host, for machines without a GPU.

Inside `emulated`, tensors on `DEVICE` are computed in host memory, but behave as on a GPU: they cannot be
combined with host tensors and have no NumPy view. The host waits when it reads one of their values, and when
it copies a tensor to the device, unless the copy is non-blocking.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("meta")  # the only one that autograd supports without hardware

aten = torch.ops.aten
READS = (
    aten._local_scalar_dense.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten.equal.default,
)
"""Operations whose result the host needs."""
INDEXING = (aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default)
COPIES = {aten._to_copy.default: 0, aten.copy_.default: 1}
"""Copies between host and device, with the index of the source argument."""
LAYERS = (torch.conv2d, torch.nn.functional.linear)
CONSTRUCTORS = (torch.tensor, torch.as_tensor)
SUBSCRIPTS = (Tensor.__getitem__, Tensor.__setitem__)


@contextmanager
def emulated() -> Iterator[Device]:
    """A context in which the device `DEVICE` exists."""
    device = Device()
    places = patch("pfl.run.validation.DEVICES", DEVICE.type)
    with _Operations(device), _Python(), places, patch("torch.autocast", _Autocast):
        yield device


@contextmanager
def emulated_gpu() -> Iterator[Device]:
    """`emulated`, with the steps of a stack recorded and replayed as on a GPU."""
    with emulated() as device, patch("pfl.engine.device.captures_on", lambda _: lambda: device.capture):
        yield device


class Device:
    """Observations of the device.

    Attributes:
        waits: how often the host waited, by operation.
        replays: how often recorded work was replayed.
    """

    def __init__(self) -> None:
        self.waits: Counter[str] = Counter()
        self.replays = 0
        self.recording: list[tuple[Any, Any, Any, Any]] | None = None
        self._before: dict[int, tuple[Any, Any]] = {}

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """A `pfl.engine.graphs.Capture`: replays run the same operations on the same memory."""
        recorded: list[tuple[Any, Any, Any, Any]] = []
        self.recording = recorded
        try:
            work()
        finally:
            self.recording = None
            for storage, content in self._before.values():  # recording must not change memory
                storage.copy_(content)
            self._before.clear()

        def replay() -> None:
            self.replays += 1
            for func, args, kwargs, outputs in recorded:
                for place, value in zip(
                    tree_leaves(outputs), tree_leaves(func(*args, **kwargs)), strict=True
                ):
                    if isinstance(place, Tensor) and not _share_memory(place, value):
                        place.copy_(value)

        return replay

    def remember(self, values: Sequence[Any]) -> None:
        """Save memory to which an operation of a recording may write."""
        for storage in [value.untyped_storage() for value in values if isinstance(value, Tensor)]:
            if storage.data_ptr() not in self._before:
                self._before[storage.data_ptr()] = storage, storage.clone()


def _share_memory(first: Tensor, second: Tensor) -> bool:
    return first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()


class OnDevice(Tensor):
    """A tensor on the device; ``held`` is its content."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> OnDevice:
        tensor: Any = Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=DEVICE,
        )
        tensor.held = held
        return tensor  # type: ignore[no-any-return]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
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
    """Runs every operation on the content of the tensors, and checks where they are."""

    def __init__(self, device: Device):
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = device

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        on_device = any(isinstance(value, OnDevice) for value in tree_leaves((args, kwargs)))
        place = kwargs.get("device")
        if place is not None:
            kwargs["device"] = torch.device("cpu")
        returns_on_device = on_device if place is None else torch.device(place) == DEVICE
        if func is aten.copy_.default:
            returns_on_device = isinstance(args[0], OnDevice)
        if func not in COPIES:
            _assert_together(func, args, kwargs)
        self._mind(func, args, kwargs, on_device, returns_on_device)
        held, named = tree_map(_held, args), tree_map(_held, kwargs)
        if self.device.recording is not None:
            self.device.remember(tree_leaves((held, named)))
        outputs = func(*held, **named)
        if self.device.recording is not None:
            self.device.recording.append((func, held, named, outputs))
        if not returns_on_device:
            return outputs
        outputs = tree_map(lambda value: OnDevice(value) if isinstance(value, Tensor) else value, outputs)
        return return_and_correct_aliasing(func, args, kwargs, outputs) if on_device else outputs

    def _mind(
        self,
        func: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        on_device: bool,
        returns_on_device: bool,
    ) -> None:
        """Count waits of the host: copies to it, reads, indexing by a mask, and blocking copies from it. A
        recorded operation may neither make it wait nor take anything from it."""
        masked = func in INDEXING and any(
            index is not None and index.dtype is torch.bool for index in args[1]
        )
        comes = func in COPIES and returns_on_device and not isinstance(args[COPIES[func]], OnDevice)
        blocks = not (kwargs.get("non_blocking") or any(value is True for value in args[2:]))
        waits = (on_device and (not returns_on_device or func in READS or masked)) or (comes and blocks)
        if waits:
            self.device.waits[str(func)] += 1
        if self.device.recording is not None and (waits or comes):
            raise RuntimeError(f"{func}: recorded work must not involve the host")


def _held(value: Any) -> Any:
    return value.held if isinstance(value, OnDevice) else value


def _assert_together(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """As on a GPU, only scalars and indices into a tensor on the device may be on the host."""
    operands = [args[0], *args[2:]] if func in INDEXING else [args, kwargs]
    tensors = [value for value in tree_leaves([args, kwargs]) if isinstance(value, Tensor)]
    if not any(isinstance(value, OnDevice) for value in tensors):
        return
    for value in tree_leaves(operands):
        if isinstance(value, Tensor) and not isinstance(value, OnDevice) and value.dim():
            raise RuntimeError(f"{func}: {tuple(value.shape)} is on the host, the others are on the device")


class _Python(TorchFunctionMode):
    """Creates tensors from Python numbers on the host, where torch would create them on the device."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in CONSTRUCTORS and kwargs.get("device") is not None:
            device = kwargs.pop("device")
            return func(*args, **kwargs).to(device)
        on_device = bool(args) and isinstance(args[0], OnDevice)
        if on_device and func is Tensor.new_tensor:
            return torch.tensor(args[1], dtype=kwargs.get("dtype", args[0].dtype)).to(DEVICE)
        if on_device and func in SUBSCRIPTS and isinstance(args[1], list):
            args = (args[0], torch.tensor(args[1]), *args[2:])
        return func(*args, **kwargs)


class _Autocast(TorchFunctionMode):
    """Replaces autocast, which does not know the device: layers convert their inputs to ``dtype``."""

    def __init__(self, device_type: str, dtype: torch.dtype, cache_enabled: bool):
        super().__init__()
        self.dtype = dtype

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func in LAYERS:
            args = [value.to(self.dtype) if isinstance(value, Tensor) else value for value in args]
        return func(*args, **(kwargs or {}))
