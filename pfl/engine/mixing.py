"""Mixing matrices over the rows of a client store.

A mixing assigns to each parameter group a row-stochastic matrix W that maps the clients' stored rows to new
ones: ``new[i] = sum_j W[i, j] * old[j]``. Instead of a matrix, a tensor can be given a new value that the
server computed. Matrices can be weighted and added: ``0.9 * server.average() + 0.1 * Identity()``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from pfl.core.errors import InvalidInput
from pfl.core.lazy import torch
from pfl.engine.client_store import ClientStore, CopyOnWriteTensor

if TYPE_CHECKING:
    from torch import Tensor

    from pfl.engine.state import Tree

ROW_SUM_TOLERANCE = 1e-6


class Summable:
    """A matrix that can be weighted and added; the result is a `Sum`, which is refused with a `DeltaMix`."""

    def _terms(self) -> tuple[tuple[float, Any], ...]:
        return ((1.0, self),)

    def __rmul__(self, weight: float) -> Sum:
        return Sum(tuple((weight * own, matrix) for own, matrix in self._terms()))

    __mul__ = __rmul__

    def __add__(self, other: Summable) -> Sum:
        return Sum(self._terms() + other._terms()) if isinstance(other, Summable) else NotImplemented


@dataclass(frozen=True)
class Identity(Summable):
    """W = I: the group is personal.

    >>> mixing = {"extractor": Average(torch.tensor([0.5, 0.5])), "head": Identity()}
    """


@dataclass(frozen=True)
class Average(Summable):
    """W = own * I + 1 p^T over the participants of the round: the group is global.

    >>> check_rows(Average(torch.tensor([0.25, 0.75])))

    Attributes:
        weights: (K,) in the order of the participants, or (S,) in the order of ``sources``.
        sources: (S,) clients whose last trained value is read instead of the participants'.
        own: () weight of each client's value before this round's training; `None` means 0. Together with
            the weights it sums to 1.
    """

    weights: Tensor
    sources: Tensor | None = None
    own: Tensor | None = None


@dataclass(frozen=True)
class Dense(Summable):
    """Rows of a general W: ``new[rows] = own * old[rows] + matrix @ old[sources]``.

    >>> mixed(torch.tensor([[1.0], [3.0]]), Dense(torch.tensor([[0.5, 0.5], [0.0, 1.0]])))
    tensor([[2.],
            [3.]])

    Attributes:
        matrix: (R, S) non-negative.
        rows: (R,) clients whose rows change; `None` means all clients or, in `Method.dispatch`, the
            participants in their order.
        sources: (S,) clients that are read; `None` means all clients.
        own: (R,) weight of the row's own old value; `None` means 0.
        downloads: the total number of models sent to the participants, if they do the mixing; `None` means
            that each participant receives its mixture.
    """

    matrix: Tensor
    rows: Tensor | None = None
    sources: Tensor | None = None
    own: Tensor | None = None
    downloads: int | None = None


@dataclass(frozen=True)
class DeltaMix(Summable):
    """Rows of W over the participants' updates: ``new = start + step * W @ (upload - start)``.

    >>> half = DeltaMix(torch.full((2, 2), 0.5), step=torch.ones(2))
    >>> half.moved(start=torch.zeros(2, 1), upload=torch.tensor([[1.0], [3.0]]))
    tensor([[2.],
            [2.]])

    Attributes:
        matrix: (K, K) non-negative.
        step: (K,) step sizes; 1 is that of FedAvg.
    """

    matrix: Tensor
    step: Tensor

    def moved(self, start: Tensor, upload: Tensor) -> Tensor:
        """The participants' new rows (K, *shape) of one tensor."""
        rows = (self.step[:, None] * self.matrix).to(start.dtype)
        return start + (rows @ (upload - start).flatten(1)).view_as(start)


@dataclass(frozen=True)
class Masked(Summable):
    """Element-wise choice between the rows of two matrices, both read from the same snapshot.

    >>> mean, own = Dense(torch.full((2, 2), 0.5)), Dense(torch.eye(2))
    >>> mixed(torch.tensor([[1.0, 1.0], [3.0, 3.0]]), Masked(torch.tensor([[True, False]]), mean, own))
    tensor([[2., 1.],
            [2., 3.]])

    Attributes:
        mask: (R, *shape), true where ``inside`` applies.
        inside: its R rows are the rows that change.
        outside: applies elsewhere; has R rows, or one row for all.
    """

    mask: Tensor
    inside: Dense
    outside: Dense

    @property
    def parts(self) -> tuple[Dense, Dense]:
        return self.inside, self.outside

    @property
    def rows(self) -> Tensor | None:
        return self.inside.rows


@dataclass(frozen=True)
class Sum(Summable):
    """W = sum_k w_k W_k; all terms read the same snapshot.

    >>> total = 0.9 * Dense(torch.full((2, 2), 0.5)) + 0.1 * Identity()
    >>> mixed(torch.tensor([[1.0], [3.0]]), total)
    tensor([[1.9000],
            [2.1000]])

    After training, `Identity` stands for a participant's trained model and another client's stored one.

    Attributes:
        terms: pairs of w_k, non-negative with sum 1, and W_k, any matrix except `DeltaMix` and `Sum`.
    """

    terms: tuple[tuple[float, Any], ...]

    def _terms(self) -> tuple[tuple[float, Any], ...]:
        return self.terms

    def with_values(self, value: Callable[[Average], Tensor]) -> Sum:
        """The sum with each average replaced by its ``value`` (1, *shape) or (n, *shape)."""
        return Sum(tuple((w, value(term) if isinstance(term, Average) else term) for w, term in self.terms))

    @property
    def rows(self) -> Tensor | None:
        """(R,) clients whose rows change; `None` means all clients."""
        changing = [term for _, term in self.terms if not isinstance(term, Identity)]
        rows = [term.rows for term in changing if isinstance(term, Dense | Masked) and term.rows is not None]
        return torch.cat(rows).unique() if rows and len(rows) == len(changing) else None


@dataclass(frozen=True)
class Sent:
    """Tensors that a dispatch sends in addition to models, in ``client.state`` during local training.

    >>> dispatch = {"all": Average(torch.tensor([0.5, 0.5])), "drift": Sent(torch.zeros(1, 10))}

    They count as traffic unless `Server.count` states otherwise.

    Attributes:
        tensors: (K, ...) for the K participants, or (1, ...) for all of them; or such tensors by name.
    """

    tensors: Tree


Matrix = Identity | Average | Dense | DeltaMix | Masked | Sum
Mixing = Mapping[str, "Matrix | Tensor"]
"""Group name to matrix, or tensor name to a new value that the server computed. If two entries name the same
tensor, the later one applies.
"""
Dispatch = Mapping[str, "Matrix | Tensor | Sent"]
"""A mixing, plus what else is sent to the participants, under new names."""


def check_rows(matrix: Matrix, where: str = "mixing") -> None:
    """Check that W is non-negative and that its rows sum to 1, which several papers' equations violate.

    Raises:
        InvalidInput: W is invalid; the message says ``where``. On a GPU, an assertion fails later instead.
    """
    if isinstance(matrix, Identity):
        return
    if isinstance(matrix, Masked):
        check_rows(matrix.inside, where)
        check_rows(matrix.outside, where)
        return
    if isinstance(matrix, Sum):
        for _, term in matrix.terms:
            check_rows(term, where)
        shares = [weight for weight, _ in matrix.terms]
        if min(shares) < 0 or abs(sum(shares) - 1) > ROW_SUM_TOLERANCE:
            raise InvalidInput(where, f"a sum with weights {shares}", "non-negative weights that sum to 1")
        return
    weights = matrix.weights if isinstance(matrix, Average) else matrix.matrix
    sums = weights.sum(-1)
    if not isinstance(matrix, DeltaMix) and matrix.own is not None:
        sums = sums + matrix.own
    wrong = (weights < 0).any(-1) | ((sums - 1).abs() > ROW_SUM_TOLERANCE)
    if weights.device.type != "cpu":
        # Fails on the device, so that the host does not wait.
        torch._assert_async(~wrong.any(), f"{where}: mixing rows must be non-negative and sum to 1")
    elif wrong.any():
        total, least = sums[wrong][0].item(), weights[wrong][0].min().item()
        row = f"{type(matrix).__name__} with a row of sum {total:.7g} and smallest weight {least:.7g}"
        raise InvalidInput(where, row, "rows of non-negative weights that sum to 1")


def normalised(weights: Tensor) -> Tensor:
    """Non-negative weights scaled to sum to 1 along the last axis.

    >>> normalised(torch.tensor([1.0, 3.0]))
    tensor([0.2500, 0.7500])
    """
    return weights / weights.sum(-1, keepdim=True)


def per_row(numbers: Tensor, stack: Tensor) -> Tensor:
    """``numbers`` (K,) as (K, 1, ..., 1), in the dtype of ``stack`` (K, *shape)."""
    return numbers.to(stack.dtype).view(-1, *[1] * (stack.dim() - 1))


def mixed(
    old: Tensor | CopyOnWriteTensor, matrix: Dense | Masked | Sum, rows: Tensor | None = None
) -> Tensor:
    """Apply ``matrix`` to ``old`` (n, *shape), and return the new rows (R, *shape).

    A sum of values (1, *shape) gives one row.

    Args:
        rows: (R,) clients of the rows of a `Dense` or `Masked`; by default as it states.
    """
    rows = matrix.rows if rows is None else rows
    if isinstance(matrix, Sum):
        new = reduce(torch.add, (weight * _all_rows(old, term) for weight, term in matrix.terms))
        return new if rows is None else new[rows]
    if isinstance(matrix, Masked):
        inside, outside = (mixed(old, part, rows) for part in matrix.parts)
        return torch.where(matrix.mask, inside, outside)
    weights = matrix.matrix.to(old.dtype)
    if matrix.sources is not None:
        sources = old[matrix.sources]
    elif (
        isinstance(old, CopyOnWriteTensor)
        and old.values.device == weights.device
        and weights.device.type == "cpu"
    ):
        # Multiply the stored rows, without a copy for every client.
        weights = weights.new_zeros(len(weights), len(old.values)).index_add_(1, old.rows.at, weights)
        sources = old.values
    else:
        sources = old[:]
    new = (weights @ sources.flatten(1)).view(len(weights), *sources.shape[1:])
    if matrix.own is not None:
        kept = old[:] if rows is None else old[rows]
        new = torch.addcmul(new, per_row(matrix.own, kept), kept)
    return new


def _all_rows(old: Tensor | CopyOnWriteTensor, matrix: Identity | Dense | Masked | Tensor) -> Tensor:
    """All rows (n, *shape) after ``matrix``, changed or not; a value as it is."""
    if isinstance(matrix, Identity):
        return old[:]
    if not isinstance(matrix, Dense | Masked):
        return matrix
    if matrix.rows is None:
        return mixed(old, matrix)
    rows = old[:].clone()
    rows[matrix.rows] = mixed(old, matrix)
    return rows


def mix(store: ClientStore, name: str, matrix: Dense | Masked | Sum) -> None:
    """Replace rows of one tensor in ``store`` by their mixture, read from a snapshot."""
    new = mixed(store.stacks[name], matrix)
    rows = matrix.rows
    if isinstance(matrix, Sum) and rows is None and len(new) == 1:
        store.share(name, new[0])
    else:
        store.write(store.client_ids if rows is None else rows, {name: new})
