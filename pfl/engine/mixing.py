"""Mixing matrices over the rows of a bank (methods.md section 2.1).

A mixing says, for each parameter group, which row-stochastic matrix W turns the clients' stored rows into
their new ones: ``new[i] = sum_j W[i, j] * old[j]``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pfl.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

ROW_SUM_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Identity:
    """W = I: the group is personal."""


@dataclass(frozen=True)
class Replaced:
    """No mixing: the server made the group's tensors itself and gave them to everybody."""


@dataclass(frozen=True)
class Average:
    """W = own * I + 1 p^T over the participants of the round: the group is global.

    Attributes:
        weights: (K,) in the order of the participants, or (S,) in the order of ``sources``.
        sources: (S,) clients whose last trained value is read in place of the participants'.
        own: () weight of the old value; None: 0. It and the weights sum to 1.
    """

    weights: Tensor
    sources: Tensor | None = None
    own: Tensor | None = None


@dataclass(frozen=True)
class Dense:
    """Rows of a general W: ``new[rows] = own * old[rows] + matrix @ old[sources]``.

    Attributes:
        matrix: (R, S) non-negative.
        rows: (R,) clients whose rows change; None: all clients.
        sources: (S,) clients that are read; None: all clients.
        own: (R,) weight of the row's own old value; None: 0.
    """

    matrix: Tensor
    rows: Tensor | None = None
    sources: Tensor | None = None
    own: Tensor | None = None


@dataclass(frozen=True)
class Changes:
    """Rows of W over what the participants changed: ``new = start + step * W @ (upload - start)``.

    Attributes:
        matrix: (K, K) non-negative.
        step: (K,), 1 for FedAvg's step.
    """

    matrix: Tensor
    step: Tensor

    def moved(self, start: Tensor, upload: Tensor) -> Tensor:
        """The participants' new rows (K, *shape) of one tensor."""
        rows = (self.step[:, None] * self.matrix).to(start.dtype)
        return start + (rows @ (upload - start).flatten(1)).view_as(start)


@dataclass(frozen=True)
class Masked:
    """Element by element the rows of one matrix or of another, both read from the same snapshot.

    Attributes:
        mask: (R, *shape), true where ``inside`` applies.
        inside: its R rows are those that change.
        outside: as many rows, or one for all of them.
    """

    mask: Tensor
    inside: Dense
    outside: Dense

    @property
    def rows(self) -> Tensor | None:
        return self.inside.rows


Matrix = Identity | Replaced | Average | Dense | Changes | Masked
Mixing = Mapping[str, Matrix]
"""Group name to matrix. A later entry overrides an earlier one on the tensors that both name."""


def check_rows(matrix: Matrix) -> None:
    """Assert that W is non-negative with rows that sum to 1 (the printed defects of several papers)."""
    if isinstance(matrix, Identity | Replaced):
        return
    if isinstance(matrix, Masked):
        check_rows(matrix.inside)
        check_rows(matrix.outside)
        return
    weights = matrix.weights if isinstance(matrix, Average) else matrix.matrix
    sums = weights.sum(-1)
    if not isinstance(matrix, Changes) and matrix.own is not None:
        sums = sums + matrix.own
    if bool((weights < 0).any()) or bool(((sums - 1).abs() > ROW_SUM_TOLERANCE).any()):
        raise AssertionError(f"mixing rows must be non-negative and sum to 1, got sums {sums.tolist()}")


def normalised(weights: Tensor) -> Tensor:
    """Non-negative weights scaled to sum to 1 along the last axis."""
    return weights / weights.sum(-1, keepdim=True)


class Bank:
    """The last value of every tensor of every client: name to (n, *shape).

    A tensor that all clients share is stored once, as (1, *shape), until somebody's own value is written.
    """

    def __init__(self, tensors: Mapping[str, Tensor], clients: int):
        self.tensors = dict(tensors)
        self.clients = clients

    def __getitem__(self, name: str) -> Tensor:
        """(n, *shape); shared tensors are expanded, so do not write into the result."""
        tensor = self.tensors[name]
        return tensor.expand(self.clients, *tensor.shape[1:])

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def shared(self, name: str) -> bool:
        return self.tensors[name].shape[0] == 1 < self.clients

    def rows(self, ids: Tensor) -> dict[str, Tensor]:
        """A copy of the rows ``ids``: name to (K, *shape)."""
        return {name: self[name][ids] for name in self.tensors}

    def write(self, name: str, ids: Tensor, values: Tensor) -> None:
        """Replace the rows ``ids`` of one tensor."""
        if self.shared(name):
            self.tensors[name] = self[name].clone()
        self.tensors[name][ids] = values

    def mix(self, name: str, matrix: Dense | Masked) -> None:
        """Replace rows of one tensor by their mixture, read from a snapshot."""
        new = mixed(self[name], matrix)
        if matrix.rows is None:
            self.tensors[name] = new
        else:
            self.write(name, matrix.rows, new)


def mixed(old: Tensor, matrix: Dense | Masked) -> Tensor:
    """The new rows (R, *shape) of ``matrix`` out of ``old`` (n, *shape)."""
    if isinstance(matrix, Masked):
        return torch.where(matrix.mask, mixed(old, matrix.inside), mixed(old, matrix.outside))
    sources = old if matrix.sources is None else old[matrix.sources]
    weights = matrix.matrix.to(old.dtype)
    new = (weights @ sources.flatten(1)).view(len(weights), *old.shape[1:])
    if matrix.own is not None:
        kept = old if matrix.rows is None else old[matrix.rows]
        own = matrix.own.to(old.dtype).view(-1, *[1] * (old.dim() - 1))
        new = torch.addcmul(new, own, kept)
    return new
