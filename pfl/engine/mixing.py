"""Mixing matrices over the rows of a client store.

A mixing says, for each parameter group, which row-stochastic matrix W turns the clients' stored rows into
their new ones: ``new[i] = sum_j W[i, j] * old[j]``. Instead of a matrix, a single tensor may have a new value
that the server computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pfl.core.lazy import torch
from pfl.engine.client_store import ClientStore, CopyOnWriteTensor

if TYPE_CHECKING:
    from torch import Tensor

ROW_SUM_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Identity:
    """W = I: the group is personal."""


@dataclass(frozen=True)
class Average:
    """W = own * I + 1 p^T over the participants of the round: the group is global.

    Attributes:
        weights: (K,) in the order of the participants, or (S,) in the order of ``sources``.
        sources: (S,) clients whose last trained value is read instead of the participants'.
        own: () weight of the old value; `None` means 0. It and the weights sum to 1.
    """

    weights: Tensor
    sources: Tensor | None = None
    own: Tensor | None = None


@dataclass(frozen=True)
class Dense:
    """Rows of a general W: ``new[rows] = own * old[rows] + matrix @ old[sources]``.

    Attributes:
        matrix: (R, S) non-negative.
        rows: (R,) clients whose rows change; `None` means all clients.
        sources: (S,) clients that are read; `None` means all clients.
        own: (R,) weight of the row's own old value; `None` means 0.
        downloads: the number of models that all participants together receive, if they mix by themselves;
            `None` means that each receives its mixture.
    """

    matrix: Tensor
    rows: Tensor | None = None
    sources: Tensor | None = None
    own: Tensor | None = None
    downloads: int | None = None


@dataclass(frozen=True)
class DeltaMix:
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
    """For each element the rows of one of two matrices, both read from the same snapshot.

    Attributes:
        mask: (R, *shape), true where ``inside`` applies.
        inside: its R rows are those that change.
        outside: has as many rows, or one row for all.
    """

    mask: Tensor
    inside: Dense
    outside: Dense

    @property
    def rows(self) -> Tensor | None:
        return self.inside.rows


Matrix = Identity | Average | Dense | DeltaMix | Masked
Mixing = Mapping[str, "Matrix | Tensor"]
"""Group name to matrix, or tensor name to a new value that the server computed. A later entry overrides an
earlier one on the tensors that both name."""


def check_rows(matrix: Matrix) -> None:
    """Assert that W is non-negative with rows that sum to 1 (the printed defects of several papers)."""
    if isinstance(matrix, Identity):
        return
    if isinstance(matrix, Masked):
        check_rows(matrix.inside)
        check_rows(matrix.outside)
        return
    weights = matrix.weights if isinstance(matrix, Average) else matrix.matrix
    sums = weights.sum(-1)
    if not isinstance(matrix, DeltaMix) and matrix.own is not None:
        sums = sums + matrix.own
    wrong = (weights < 0).any() | ((sums - 1).abs() > ROW_SUM_TOLERANCE).any()
    rule = "mixing rows must be non-negative and sum to 1"
    if weights.device.type != "cpu":
        torch._assert_async(~wrong, rule)  # fails on the device, so that the host does not wait
    elif wrong:
        raise AssertionError(f"{rule}, got sums {sums.tolist()}")


def normalised(weights: Tensor) -> Tensor:
    """Non-negative weights scaled to sum to 1 along the last axis."""
    return weights / weights.sum(-1, keepdim=True)


def per_row(numbers: Tensor, stack: Tensor) -> Tensor:
    """A number for each row of ``stack`` (K, *shape), as (K, 1, ..., 1) of its type."""
    return numbers.to(stack.dtype).view(-1, *[1] * (stack.dim() - 1))


def mixed(old: Tensor | CopyOnWriteTensor, matrix: Dense | Masked) -> Tensor:
    """The new rows (R, *shape) that ``matrix`` makes from the rows of ``old`` (n, *shape) that it needs."""
    if isinstance(matrix, Masked):
        return torch.where(matrix.mask, mixed(old, matrix.inside), mixed(old, matrix.outside))
    weights = matrix.matrix.to(old.dtype)
    if matrix.sources is not None:
        sources = old[matrix.sources]
    elif (
        isinstance(old, CopyOnWriteTensor)
        and old.values.device == weights.device
        and weights.device.type == "cpu"
    ):
        # The stored rows, without a copy for every client.
        weights = weights.new_zeros(len(weights), len(old.values)).index_add_(1, old.rows.at, weights)
        sources = old.values
    else:
        sources = old[:]
    new = (weights @ sources.flatten(1)).view(len(weights), *sources.shape[1:])
    if matrix.own is not None:
        kept = old[:] if matrix.rows is None else old[matrix.rows]
        new = torch.addcmul(new, per_row(matrix.own, kept), kept)
    return new


def mix(store: ClientStore, name: str, matrix: Dense | Masked) -> None:
    """Replace rows of one tensor in ``store`` by their mixture, read from a snapshot."""
    new = mixed(store.stacks[name], matrix)
    store.write(store.everybody if matrix.rows is None else matrix.rows, {name: new})
