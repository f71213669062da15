"""The latest value of every client's tensors; values that clients share are stored once."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pfl.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

SPARE = 4  # a bank that grows reserves a quarter more rows than it needs
RESERVED = 512 << 20
"""Bytes of host memory that one tensor of a bank may reserve at once. Reserved memory costs nothing before it
is written to, while growing would hold the old and the new copy at the same time."""


class CopyOnWriteTensor:
    """One tensor of every client, (n, *shape).

    The shared value is stored once. A client gets a row when its value first differs. Memory and checkpoints
    thus grow with the number of clients that took part, not with the number of all clients.

    Args:
        common: (*shape), the shared value.
        clients: n.
        home: the device that stores the rows; rows that are read are copied to the device of ``common``.
    """

    def __init__(self, common: Tensor, clients: int, home: torch.device | None = None):
        self.device = common.device
        self.values = common.unsqueeze(0).to(home or common.device)  # first the common value, then the rows
        self.room = 0  # rows for which ``values`` has memory of its own
        self.at = torch.zeros(1, dtype=torch.int64, device=self.values.device).expand(clients)

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
        """Whether no client has a value of its own."""
        return len(self.values) == 1

    def __getitem__(self, clients: Tensor | slice) -> Tensor:
        """(K, *shape). Indexing by ids (K,) copies; do not write into a slice, which may be shared."""
        if isinstance(clients, slice) and self.shared:
            return self.values.to(self.device).expand(len(self.at[clients]), *self.shape)
        where = self.at[clients.to(self.at.device) if isinstance(clients, torch.Tensor) else clients]
        return self.values[where].to(self.device)

    def write(self, ids: Tensor, values: Tensor) -> None:
        """Replace the rows ``ids`` (K,) by ``values`` (K, *shape)."""
        ids = ids.to(self.at.device)
        newcomers = ids[self.at[ids] == 0]
        if len(newcomers):
            first = int(self.at.max()) + 1
            self.at = self.at.contiguous()
            self.at[newcomers] = torch.arange(first, first + len(newcomers), device=self.at.device)
            self._hold(first + len(newcomers))
        self.values[self.at[ids]] = values.to(self.values.device)

    def copy(self) -> CopyOnWriteTensor:
        """A copy with its own memory."""
        twin = copy.copy(self)
        twin.values, twin.room, twin.at = self.values.clone(), 0, self.at.clone()
        return twin

    def _hold(self, rows: int) -> None:
        """Resize ``values`` to this many rows; if that needs new memory, reserve more than needed."""
        if rows > self.room:
            room = rows + rows // SPARE
            if self.values.device.type == "cpu":
                room = max(room, RESERVED // (self.shape.numel() * self.dtype.itemsize))
            self.room = min(room, len(self.at) + 1)
            larger = self.values.new_empty((self.room, *self.shape))
            larger[: len(self.values)] = self.values
            self.values = larger
        self.values = self.values.as_strided((rows, *self.shape), self.values.stride())


class ClientStore:
    """The latest value of every tensor of every client, by name.

    Args:
        tensors: name to (1, *shape), the shared value, or to (n, *shape).
        clients: n.
        home: the device that stores the rows; see `CopyOnWriteTensor`.
    """

    def __init__(self, tensors: Mapping[str, Tensor], clients: int, home: torch.device | None = None):
        self.clients = clients
        self.home = home
        self.stacks: dict[str, CopyOnWriteTensor] = {}
        for name, tensor in tensors.items():
            self.share(name, tensor[0])
            if len(tensor) > 1:
                self.write(name, self.everybody(tensor.device), tensor)

    def __getitem__(self, name: str) -> Tensor:
        """(n, *shape); a shared tensor is expanded, so do not write into the result."""
        return self.stacks[name][:]

    def __contains__(self, name: str) -> bool:
        return name in self.stacks

    def state(self) -> dict[str, tuple[Tensor, Tensor]]:
        """All that is stored, for a checkpoint."""
        return {name: (rows.stored, rows.at) for name, rows in self.stacks.items()}

    def restore(self, state: Mapping[str, tuple[Tensor, Tensor]], device: torch.device) -> None:
        """Put back what `state` returned; rows are then read on ``device``."""
        home = self.home or device
        for name, (values, at) in state.items():
            rows = self.stacks[name] = CopyOnWriteTensor(values[0], self.clients)
            rows.values, rows.at, rows.device = values.to(home), at.to(home), device

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

    def write(self, name: str, ids: Tensor, values: Tensor) -> None:
        """Replace the rows ``ids`` of one tensor."""
        self.stacks[name].write(ids, values)

    def share(self, name: str, value: Tensor) -> None:
        """Make ``value`` (*shape) the value of all clients."""
        self.stacks[name] = CopyOnWriteTensor(value, self.clients, self.home)

    def everybody(self, device: torch.device) -> Tensor:
        """(n,) the ids of all clients."""
        return torch.arange(self.clients, device=device)
