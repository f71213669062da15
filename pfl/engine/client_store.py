"""The latest value of every client's tensors; values that clients share are stored once."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pfl.core.lazy import torch
from pfl.engine.transfer import on_device

if TYPE_CHECKING:
    from torch import Tensor

SPARE = 4  # a store that grows reserves a quarter more rows than it needs
RESERVED = 512 << 20
"""Bytes of host memory that one tensor of a store may reserve in advance. Reserved memory costs nothing until
it is written to, whereas growing holds the old and the new copy at the same time."""


@dataclass(frozen=True, eq=False)
class RowMap:
    """The row that holds each client's value. Clients without a private row share row 0.

    Tensors that are written together have the same map.

    Attributes:
        on_host: (n,) row indices in host memory, which are read without a device synchronisation.
        at: (n,) the same indices on the device that stores the rows.
        count: the number of rows, including the shared one.
    """

    on_host: Tensor
    at: Tensor
    count: int

    def joined(self, ids: Tensor) -> RowMap:
        """The map in which the clients ``ids`` (K,), on any device, also have private rows."""
        if self.count > len(self.at):
            return self
        mine = ids.cpu()
        newcomers = mine[self.on_host[mine] == 0]
        if not len(newcomers):
            return self
        on_host = self.on_host.clone(memory_format=torch.contiguous_format)
        on_host[newcomers] = torch.arange(self.count, self.count + len(newcomers))
        return RowMap(on_host, on_device(on_host, self.at.device), self.count + len(newcomers))


class CopyOnWriteTensor:
    """One tensor of every client, (n, *shape).

    The shared value is stored once. A client gets a row when its value first differs. Memory and checkpoints
    thus grow with the number of clients that took part, not with the number of all clients.

    Args:
        common: (*shape), the shared value.
        rows: a map without private rows. Rows that are read are copied to the device of ``common``.
    """

    def __init__(self, common: Tensor, rows: RowMap):
        self.device = common.device
        self.values = common.unsqueeze(0).to(rows.at.device)  # the shared value, then the private rows
        self.room = 0  # rows for which memory was reserved
        self.rows = rows

    @property
    def shape(self) -> torch.Size:
        """The shape of one client's tensor."""
        return self.values.shape[1:]

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype

    @property
    def stored(self) -> Tensor:
        """``values`` without the reserved memory behind them, which `torch.save` would also write."""
        if not self.room or self.values.device.type != "cpu":
            return self.values
        storage = self.values.untyped_storage()[: self.values.nbytes]
        return self.values.new_empty(0).set_(storage, 0, self.values.shape, self.values.stride())

    @property
    def shared(self) -> bool:
        """Whether all clients share the value."""
        return len(self.values) == 1

    def __getitem__(self, clients: Tensor | slice) -> Tensor:
        """The rows (K, *shape). Indexing by ids (K,) copies; do not write to a slice, which may be shared."""
        if isinstance(clients, slice) and self.shared:
            return self.values.to(self.device).expand(len(self.rows.at[clients]), *self.shape)
        at = self.rows.at
        where = at[clients.to(at.device) if isinstance(clients, torch.Tensor) else clients]
        return self.values[where].to(self.device)

    def write(self, where: Tensor, values: Tensor, rows: RowMap) -> None:
        """Adopt the map ``rows``, and write ``values`` (K, *shape) to its rows ``where`` (K,)."""
        if rows.count > len(self.values):
            self._hold(rows.count)
        self.rows = rows
        self.values[where] = values.to(self.values.device)

    def copy(self) -> CopyOnWriteTensor:
        """A copy with its own memory."""
        twin = copy.copy(self)
        twin.values, twin.room = self.values.clone(), 0
        return twin

    def _hold(self, rows: int) -> None:
        """Resize ``values`` to this many rows; if that needs new memory, reserve more than needed."""
        if rows > self.room:
            room = rows + rows // SPARE
            if self.values.device.type == "cpu":
                room = max(room, RESERVED // (self.shape.numel() * self.dtype.itemsize))
            self.room = min(room, len(self.rows.at) + 1)
            larger = self.values.new_empty((self.room, *self.shape))
            larger[: len(self.values)] = self.values
            self.values = larger
        self.values = self.values.as_strided((rows, *self.shape), self.values.stride())


class ClientStore:
    """The latest value of every tensor of every client, by name.

    Args:
        tensors: name to (1, *shape), the shared value, or to (n, *shape).
        clients: n.
        home: the device that stores the rows; by default that of the tensors.
    """

    def __init__(self, tensors: Mapping[str, Tensor], clients: int, home: torch.device | None = None):
        self.clients = clients
        self.home = home
        self._nobody: RowMap | None = None  # the map without private rows
        self.stacks: dict[str, CopyOnWriteTensor] = {}
        for name, tensor in tensors.items():
            self.share(name, tensor[0])
            if len(tensor) > 1:
                self.write(self.client_ids, {name: tensor})

    def __getitem__(self, name: str) -> Tensor:
        """(n, *shape); a shared tensor is expanded, so do not write to the result."""
        return self.stacks[name][:]

    def __contains__(self, name: str) -> bool:
        return name in self.stacks

    def state(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Everything stored, for a checkpoint."""
        return {name: (stack.stored, stack.rows.on_host) for name, stack in self.stacks.items()}

    def restore(self, state: Mapping[str, tuple[Tensor, Tensor]], device: torch.device) -> None:
        """Replace the content by what `state` returned; rows are then read on ``device``.

        Raises:
            ValueError: a tensor has another shape or number of clients.
        """
        home = self.home or device
        maps: dict[bytes, RowMap] = {}
        restored: dict[str, CopyOnWriteTensor] = {}
        for name, (values, on_host) in state.items():
            known = self.stacks[name].shape if name in self.stacks else values.shape[1:]
            if values.shape[1:] != known or len(on_host) != self.clients or on_host.max() >= len(values):
                raise ValueError(f"{name} is stored with another shape or number of clients")
            key = on_host.numpy().tobytes()
            if key not in maps:
                maps[key] = RowMap(on_host, on_device(on_host, home), len(values))
            stack = restored[name] = CopyOnWriteTensor(values[0].to(device), maps[key])
            stack.values = values.to(home)
        self.stacks = restored

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Name to (1, *shape) if all clients share the value, otherwise to (n, *shape)."""
        return {name: self[name][:1] if rows.shared else self[name] for name, rows in self.stacks.items()}

    def shape(self, name: str) -> torch.Size:
        """The shape of one client's tensor."""
        return self.stacks[name].shape

    def shared(self, name: str) -> bool:
        return self.stacks[name].shared

    def rows(self, ids: Tensor) -> dict[str, Tensor]:
        """A copy of the rows ``ids``: name to (K, *shape)."""
        return {name: rows[ids] for name, rows in self.stacks.items()}

    def write(self, ids: Tensor, values: Mapping[str, Tensor]) -> None:
        """Replace the rows of the clients ``ids`` (K,) in some tensors: name to (K, *shape).

        Ids in host memory avoid a device synchronisation as long as some clients have no private row.
        """
        maps: dict[int, tuple[Tensor, RowMap]] = {}  # made once for all tensors with the same map
        for name, new in values.items():
            stack = self.stacks[name]
            key = id(stack.rows)
            if key not in maps:
                rows = stack.rows.joined(ids)
                maps[key] = rows.at[on_device(ids, rows.at.device)], rows
            where, rows = maps[key]
            stack.write(where, new, rows)

    def share(self, name: str, value: Tensor) -> None:
        """Make ``value`` (*shape) the value of all clients."""
        if self._nobody is None:
            nobody = torch.zeros(1, dtype=torch.int64)
            there = on_device(nobody, self.home or value.device)
            self._nobody = RowMap(nobody.expand(self.clients), there.expand(self.clients), 1)
        self.stacks[name] = CopyOnWriteTensor(value, self._nobody)

    @property
    def client_ids(self) -> Tensor:
        """(n,) the ids of all clients, in host memory."""
        return torch.arange(self.clients)
