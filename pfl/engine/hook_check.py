"""Checks of what a method's hooks return. On a GPU, they read only the participants' ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pfl.core.errors import InvalidInput
from pfl.engine.mixing import Average, DeltaMix, Dense, Identity, Masked, Matrix, Sent, Sum
from pfl.engine.returned import check_stacks, check_tensor, name_of, wrong_type

if TYPE_CHECKING:
    from pfl.engine.method import Method, Moment
    from pfl.engine.server import Server

Shape = tuple[int, ...]


def check_mixing(server: Server, hook: str, mixing: Any) -> None:
    """Check what the method's hook ``dispatch``, ``admit`` or ``aggregate`` returned.

    Raises:
        InvalidInput: it is not a mapping, a name is unknown, or a value has the wrong type or shape.
    """
    where = name_of(server.program.method, hook)
    if not isinstance(mixing, Mapping):
        raise wrong_type(where, mixing, "a mapping from groups to matrices and from tensors to new values")
    trained = hook == "aggregate"
    for group, value in mixing.items():
        if isinstance(value, Sent) and not trained:
            if group in server.groups or group in server.client_state:
                accepted = "a name not used by a group or by the client state"
                raise InvalidInput(f"{where}: Sent name", group, accepted)
            check_stacks(f"{where}: {group}: Sent", value.tensors, *sorted({1, len(server.participant_ids)}))
            continue
        if group not in server.groups and not trained and not isinstance(value, Matrix):
            accepted = "a group or a tensor of the clients, or Sent(...) for anything else that they receive"
            raise InvalidInput(where, group, accepted)
        try:
            names = server.groups[group]
        except InvalidInput as error:
            error.locate(where)
            raise
        for name in names:
            _Check(f"{where}: {name}", tuple(server.store.shape(name)), server, trained)(value)


def check_participants(server: Server, clients: Any) -> None:
    """Check what the hook ``participants`` returned.

    Raises:
        InvalidInput: it is not a tensor (K,) of distinct clients, K at least 1.
    """
    where = name_of(server.program.method, "participants")
    accepted = f"a tensor (K,) of distinct integers from 0 to {server.clients - 1}, K at least 1"
    if not isinstance(clients, Tensor):
        raise wrong_type(where, clients, accepted)
    inexact = clients.dtype == torch.bool or clients.is_floating_point() or clients.is_complex()
    if clients.dim() != 1 or inexact or not len(clients):
        raise InvalidInput(where, f"a tensor of shape {tuple(clients.shape)} and {clients.dtype}", accepted)
    ids = clients.tolist()
    if len(set(ids)) < len(ids) or min(ids) < 0 or max(ids) >= server.clients:
        raise InvalidInput(where, ids, accepted)


def check_headline(method: Method, moments: Sequence[Moment]) -> None:
    """Check that a method's headline is one of the ``moments`` at which its models are evaluated.

    Raises:
        InvalidInput: it is not.
    """
    if method.headline not in moments:
        accepted = " or ".join(moments)
        if "adapted" not in moments:
            accepted += "; adapted requires phases from the hook adaptation"
        raise InvalidInput(name_of(method, "headline"), method.headline, accepted)


def check_client_groups(server: Server, groups: Any) -> None:
    """Check what the hook ``client_groups`` returned.

    Raises:
        InvalidInput: it is not a mapping to bool tensors (n,).
    """
    where = name_of(server.program.method, "client_groups")
    accepted = f"a bool tensor of shape ({server.clients},)"
    if not isinstance(groups, Mapping):
        raise wrong_type(where, groups, f"a mapping from names to {accepted}")
    for name, members in groups.items():
        if not isinstance(members, Tensor):
            raise InvalidInput(f"{where}: {name}", f"a value of type {type(members).__name__}", accepted)
        if members.shape != (server.clients,) or members.dtype != torch.bool:
            value = f"a tensor of shape {tuple(members.shape)} and {members.dtype}"
            raise InvalidInput(f"{where}: {name}", value, accepted)


def check_models(server: Server, models: Any, clients: slice) -> None:
    """Check what the hook ``personal`` returned for ``clients``.

    Raises:
        InvalidInput: it is not a mapping from the name of every tensor to one tensor per client.
    """
    where = name_of(server.program.method, "personal")
    accepted = "a mapping from the name of each tensor of the clients to its values, one per client"
    if not isinstance(models, Mapping):
        raise wrong_type(where, models, accepted)
    names, count = server.store.stacks, len(range(server.clients)[clients])
    for name in (*names, *models):
        if (name in names) != (name in models):
            lacking = "without" if name in names else "with"
            raise InvalidInput(where, f"a mapping {lacking} {name!r}", accepted)
    for name, stack in models.items():
        check_tensor(f"{where}: {name}", stack, (count, *server.store.shape(name)))


class _Check:
    """Checks the matrix or value that a mixing assigns to one of the clients' tensors.

    Args:
        shape: the shape of one client's tensor.
        trained: whether the participants have trained in this round.
    """

    def __init__(self, where: str, shape: Shape, server: Server, trained: bool):
        self.where, self.shape, self.trained = where, shape, trained
        self.present, self.clients = server.participant_ids, server.clients

    def __call__(self, value: Any) -> None:
        if isinstance(value, Tensor):
            counts = {1} if self.trained else {1, len(self.present)}
            self._require("a tensor", value, *((count, *self.shape) for count in sorted(counts)))
        elif not isinstance(value, Matrix) or (isinstance(value, Average | DeltaMix) and not self.trained):
            kinds = f"{'Average, DeltaMix, ' if self.trained else ''}Dense, Identity, Masked, Sum or a tensor"
            raise InvalidInput(self.where, f"a value of type {type(value).__name__}", kinds)
        elif isinstance(value, Average):
            self._check_ids("an Average with sources", value.sources)
            sources = len(self.present) if value.sources is None else len(value.sources)
            self._require("an Average with weights", value.weights, (sources,))
            if value.own is not None:
                self._require("an Average with own weight", value.own, ())
        elif isinstance(value, DeltaMix):
            count = len(self.present)
            self._require("a DeltaMix with a matrix", value.matrix, (count, count))
            self._require("a DeltaMix with a step", value.step, (count,))
        elif isinstance(value, Sum):
            for _, term in value.terms:
                if not isinstance(term, Average | Dense | Identity | Masked):
                    kinds = "a sum of Average, Dense, Identity and Masked"
                    raise InvalidInput(self.where, f"a sum with a term of type {type(term).__name__}", kinds)
                self(term)
        elif isinstance(value, Masked) and not all(isinstance(part, Dense) for part in value.parts):
            kinds = " and ".join(type(part).__name__ for part in value.parts)
            raise InvalidInput(self.where, f"a Masked of {kinds}", "a Masked of two Dense")
        elif isinstance(value, Dense | Masked):
            what, rows = f"a {type(value).__name__} with rows", value.rows
            self._check_ids(what, rows, distinct=True)
            if not self.trained and rows is not None and rows.device.type == "cpu":
                self._check_start(what, rows)
            after_training = self.clients if rows is None else len(rows)
            self._check_rows(value, after_training if self.trained else len(self.present))

    def _check_start(self, what: str, rows: Tensor) -> None:
        present = self.present.tolist()
        if rows.tolist() != present:
            raise InvalidInput(self.where, f"{what} {rows.tolist()}", f"the participants, {present}")

    def _check_rows(self, matrix: Any, *rows: int) -> None:
        if isinstance(matrix, Masked):
            self._require("a Masked with a mask", matrix.mask, *((count, *self.shape) for count in rows))
            self._check_rows(matrix.inside, *rows)
            self._check_rows(matrix.outside, 1, *rows)
        elif isinstance(matrix, Dense):
            self._check_ids("a Dense with sources", matrix.sources)
            sources = self.clients if matrix.sources is None else len(matrix.sources)
            self._require("a Dense with a matrix", matrix.matrix, *((count, sources) for count in rows))
            if matrix.own is not None:
                self._require("a Dense with own weights", matrix.own, (len(matrix.matrix),))

    def _check_ids(self, what: str, ids: Any, distinct: bool = False) -> None:
        """Check clients of a matrix, None for all; on a CPU also their values."""
        accepted = f"a tensor of {'distinct ' if distinct else ''}integers from 0 to {self.clients - 1}"
        if ids is None:
            return
        if not isinstance(ids, Tensor):
            raise InvalidInput(self.where, f"{what} of type {type(ids).__name__}", accepted)
        if ids.dim() != 1 or ids.dtype == torch.bool or ids.is_floating_point():
            raise InvalidInput(self.where, f"{what} of shape {tuple(ids.shape)} and {ids.dtype}", accepted)
        if ids.device.type == "cpu" and len(ids):
            values = ids.tolist()
            outside = min(values) < 0 or max(values) >= self.clients
            if outside or (distinct and len(set(values)) < len(values)):
                raise InvalidInput(self.where, f"{what} {values}", accepted)

    def _require(self, what: str, tensor: Any, *accepted: Shape) -> None:
        if not isinstance(tensor, Tensor):
            raise InvalidInput(self.where, f"{what} of type {type(tensor).__name__}", "a tensor")
        if tuple(tensor.shape) not in accepted:
            shapes = " or ".join(map(str, accepted))
            raise InvalidInput(self.where, f"{what} of shape {tuple(tensor.shape)}", f"shape {shapes}")
