"""One round of a federation: dispatch, results of local training, aggregation."""

from __future__ import annotations

from functools import partial, reduce
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from pfl.engine.evaluation import moments
from pfl.engine.hook_check import check_headline, check_mixing, check_participants
from pfl.engine.mixing import (
    Average,
    DeltaMix,
    Dense,
    Dispatch,
    Identity,
    Masked,
    Matrix,
    Mixing,
    Sent,
    Sum,
    check_rows,
    mix,
    mixed,
)
from pfl.engine.returned import name_of
from pfl.engine.state import apart, memory
from pfl.engine.traffic import Traffic

if TYPE_CHECKING:
    from pfl.engine.local_training import Task, Trained
    from pfl.engine.method import Method
    from pfl.engine.server import Server


def begin_round(server: Server, method: Method) -> Task:
    """Send the participants of the next round their tensors; return the task of their local training."""
    server.round += 1
    server.traffic = Traffic()
    participants = method.participants(server)
    check_participants(server, participants)
    server.participants = participants
    dispatch(server, method.dispatch(server))
    phases = method.phases(server)
    return server.task("batches", server.participants, server.received, phases, server.sent)


def end_round(server: Server, method: Method, task: Task, trained: Trained) -> None:
    """Receive the participants' results, and aggregate."""
    server.receive(task, trained)
    aggregate(server, method.aggregate(server))
    if server.round == 1:
        check_headline(method, moments(method, server))


def dispatch(server: Server, start: Dispatch, hook: str = "dispatch") -> None:
    """Send every participant what the method's ``hook`` returned."""
    check_mixing(server, hook, start)
    server.sent = {name: value.tensors for name, value in start.items() if isinstance(value, Sent)}
    for name, tensors in server.sent.items():
        scalars = sum(tensor[0].numel() for tensor in tree_leaves(tensors))
        server.traffic.add(name, down=len(server.participants) * scalars)
    mixing = {name: value for name, value in start.items() if not isinstance(value, Sent)}
    server.received = server.store.rows(server.participants)
    server.matrices = _resolved(server, hook, mixing)
    server.received = {name: _start(server, name, matrix) for name, matrix in server.matrices.items()}


def _start(server: Server, name: str, matrix: Matrix | Tensor) -> Tensor:
    """The participants' start (K, *shape) of one tensor: ``matrix`` applied to the stored rows."""
    if isinstance(matrix, Tensor):
        return matrix.expand_as(server.received[name])
    if isinstance(matrix, Identity):
        return server.received[name]
    if isinstance(matrix, Dense | Masked):
        return mixed(server.store.stacks[name], matrix, server.participants)
    assert isinstance(matrix, Sum)
    return reduce(torch.add, (weight * _start(server, name, term) for weight, term in matrix.terms))


def aggregate(server: Server, mixing: Mixing) -> None:
    """Store what the participants trained, and mix the stored models as `Method.aggregate` returned."""
    check_mixing(server, "aggregate", mixing)
    matrices = _resolved(server, "aggregate", mixing)
    changed = {name: matrix for name, matrix in matrices.items() if not isinstance(matrix, Identity)}
    server.matrices.update(changed)
    server.keep_last_trained(name for name in changed if name in server.groups.changing)
    stored = {}
    for name, matrix in matrices.items():
        if isinstance(matrix, Tensor):
            server.store.share(name, matrix[0])
        elif isinstance(matrix, Average):
            new = server.averaged(name, matrix)
            if len(new) == 1:
                server.store.share(name, new[0])
            else:
                server.store.write(server.store.client_ids, {name: new})
        elif isinstance(matrix, DeltaMix):
            stored[name] = matrix.moved(server.received[name], server.trained[name])
        else:
            stored[name] = server.trained[name]
            if isinstance(matrix, Sum):  # an average may need the values before they are replaced
                matrices[name] = matrix.with_values(partial(server.averaged, name))
    server.store.write(server.participant_ids, stored)
    for name, matrix in matrices.items():
        if isinstance(matrix, Dense | Masked | Sum):
            mix(server.store, name, matrix)


def _resolved(server: Server, hook: str, mixing: Mixing) -> dict[str, Matrix | Tensor]:
    """Tensor name to matrix or new value, counted as traffic; a matrix of several tensors is checked once."""
    stored = server.store.stacks
    state = memory((server.state, server.client_state))  # the method may change it in place
    matrices = {
        name: apart(matrix.to(stored[name].dtype), state) if isinstance(matrix, Tensor) else matrix
        for name, matrix in server.groups.resolve(mixing, server.config.bn_stats).items()
    }
    for name, matrix in {id(matrix): (name, matrix) for name, matrix in matrices.items()}.values():
        if not isinstance(matrix, Tensor):
            check_rows(matrix, f"{name_of(server.program.method, hook)}: {name}")
    for name, matrix in matrices.items():
        server.traffic.add_mixing(name, matrix, server.store.shape(name).numel(), len(server.participants))
    return matrices
