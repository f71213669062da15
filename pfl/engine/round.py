"""One round of a federation: dispatch, results of local training, aggregation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pfl.engine.mixing import (
    Average,
    DeltaMix,
    Dense,
    Identity,
    Masked,
    Matrix,
    Mixing,
    check_rows,
    mix,
    mixed,
)
from pfl.engine.traffic import Traffic

if TYPE_CHECKING:
    from pfl.engine.local import Task, Trained
    from pfl.engine.method import Method
    from pfl.engine.server import Server


def begin_round(server: Server, method: Method) -> Task:
    """Send the participants of the next round their tensors; return the task of their local training."""
    server.round += 1
    server.traffic = Traffic()
    server.participants = method.participants(server)
    dispatch(server, method.dispatch(server))
    phases = method.phases(server)
    return server.task("batches", server.participants, server.received, phases, server.sent)


def end_round(server: Server, method: Method, task: Task, trained: Trained) -> None:
    """Receive the participants' results, and aggregate."""
    receive(server, task, trained)
    aggregate(server, method.aggregate(server))


def dispatch(server: Server, start: Mixing) -> None:
    """Send every participant what `Method.dispatch` returned."""
    server.sent = {}
    mixing = {}
    for name, value in start.items():
        if isinstance(value, Tensor) and name not in server.groups:
            server.sent[name] = value
            server.traffic.add(name, down=len(server.participants) * value[0].numel())
        else:
            mixing[name] = value
    server.received = server.bank.rows(server.participants)
    server.matrices = _resolved(server, mixing)
    for name, matrix in server.matrices.items():
        if isinstance(matrix, Tensor):
            server.received[name] = matrix.expand_as(server.received[name])
        elif isinstance(matrix, Dense | Masked):
            server.received[name] = mixed(server.bank.stacks[name], matrix)
        elif not isinstance(matrix, Identity):
            raise TypeError(f"dispatch of {name}: {type(matrix).__name__} mixes what is trained in the round")


def receive(server: Server, task: Task, trained: Trained) -> None:
    """Receive the participants' results. Only this advances their class streams."""
    server.positions[task.clients] += torch.tensor(task.batches_consumed())
    server.trained = trained.tensors
    for name, stack in server.client_state.items():
        stack[server.participants] = trained.state[name]
    last = {name: server.trained[name] for name in server.local.stacks}
    server.local.write(server.participant_ids, last)


def aggregate(server: Server, mixing: Mixing) -> None:
    """Store what the participants trained, and mix the stored models as `Method.aggregate` returned."""
    matrices = _resolved(server, mixing)
    changed = {name: matrix for name, matrix in matrices.items() if not isinstance(matrix, Identity)}
    server.matrices.update(changed)
    server.keep_last_trained(name for name in changed if name in server.groups.changing)
    stored = {}
    for name, matrix in matrices.items():
        if isinstance(matrix, Tensor):
            server.bank.share(name, matrix[0])
        elif isinstance(matrix, Average):
            server.bank.share(name, server.averaged(name, matrix)[0])
        elif isinstance(matrix, DeltaMix):
            stored[name] = matrix.moved(server.received[name], server.trained[name])
        else:
            stored[name] = server.trained[name]
    server.bank.write(server.participant_ids, stored)
    for name, matrix in matrices.items():
        if isinstance(matrix, Dense | Masked):
            mix(server.bank, name, matrix)


def _resolved(server: Server, mixing: Mixing) -> dict[str, Matrix | Tensor]:
    """Tensor name to matrix or new value, counted as traffic; a matrix of many tensors is checked once."""
    matrices = server.groups.resolve(mixing, server.config.bn_stats)
    for matrix in {id(matrix): matrix for matrix in matrices.values()}.values():
        if not isinstance(matrix, Tensor):
            check_rows(matrix)
    for name, matrix in matrices.items():
        server.traffic.add_mixing(name, matrix, server.bank.shape(name).numel(), len(server.participants))
    return matrices
