"""Clients that take no part in training: they join after the last round and are tested.

The seen clients train as a separate federation, so that the unseen ones cannot influence it. Then the state
is copied to a second server with all clients. The unseen clients are its participants, and `Method.admit`
decides what they receive.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pfl.core.config import Config
from pfl.core.errors import InvalidInput
from pfl.core.rng import generator
from pfl.core.rounding import whole_part
from pfl.core.text import amount
from pfl.data.federation import Federation
from pfl.data.partition import Partition
from pfl.engine.evaluation import averages_of, personal_models, totals_of
from pfl.engine.method import Method, Moment, Phase
from pfl.engine.metrics import Accuracy, Unseen, UnseenClient
from pfl.engine.round import dispatch
from pfl.engine.server import Server
from pfl.engine.state import State

FEWEST_SEEN = 2


@dataclass(frozen=True)
class SeenFirst:
    """A partition in which the clients that train come first.

    Attributes:
        ids: (n,) the original index of each client.
        seen: the number of clients that train.
    """

    partition: Partition
    ids: tuple[int, ...]
    seen: int

    @property
    def trained(self) -> Partition:
        """The partition of the clients that train."""
        return _chosen(self.partition, range(self.seen))


def seen_first(partition: Partition, share: float, seed: int) -> SeenFirst:
    """``partition`` with the unseen clients, a ``share`` of all sampled by ``seed``, at the end.

    Raises:
        InvalidInput: too few clients would train, or no unseen client has test samples.
    """
    clients = partition.clients
    count = max(1, whole_part(share, clients))
    if clients - count < FEWEST_SEEN:
        accepted = f"a share that leaves at least {FEWEST_SEEN} of the {amount(clients, 'client')}"
        raise InvalidInput("unseen", share, accepted)
    drawn = set(generator(seed, "unseen").choice(clients, size=count, replace=False).tolist())
    if not any(len(partition.test[client]) for client in drawn):
        accepted = f"a share in which at least one client has test samples (seed {seed})"
        raise InvalidInput("unseen", share, accepted)
    ids = sorted(range(clients), key=lambda client: client in drawn)
    return SeenFirst(_chosen(partition, ids), tuple(ids), clients - count)


def _chosen(partition: Partition, clients: Sequence[int]) -> Partition:
    """The partition of some clients, in the given order."""
    train, test = ([lists[client] for client in clients] for lists in (partition.train, partition.test))
    return dataclasses.replace(partition, train=tuple(train), test=tuple(test))


@dataclass(frozen=True)
class AllClients:
    """All clients of a simulation, and their order."""

    federation: Federation
    order: SeenFirst


NewServer = Callable[[Config, Federation, Method], Server]
"""Creates a server before its first round."""


def evaluate(trained: Server, method: Method, all_clients: AllClients, new_server: NewServer) -> Unseen:
    """Let the unseen clients join after the last round of ``trained``, which is left unchanged; test them."""
    config = dataclasses.replace(trained.config, epochs=trained.config.unseen_epochs or trained.config.epochs)
    server = new_server(config, all_clients.federation, method)
    _admit(server, trained, method)
    as_received: Moment = "post_aggregation" if method.headline == "adapted" else method.headline
    received = _totals(server, method, as_received)
    method.adapt(server)
    adapted = _totals(server, method, "post_local")

    alone = new_server(config, all_clients.federation, Method())
    alone.round, alone.participants = server.round, server.participants  # the same batches
    alone.received = alone.store.rows(alone.participants)
    alone.adapt((Phase(),))
    scratch = _totals(alone, alone.program.method, "post_local")
    return _result(server, all_clients, (received, adapted, scratch))


def _admit(server: Server, trained: Server, method: Method) -> None:
    """Copy the state of ``trained`` to ``server``, and send its other clients what a new client receives.

    A new client's tensors start as the unweighted mean of the seen clients', or as the value that these
    share. Its rows of the method's state are those of `Method.initialise`.
    """
    old = trained.client_ids.cpu()
    server.round = trained.round
    server.positions[old] = trained.positions
    counts = trained.clients, server.clients
    server.state = _extended(trained.state, server.state, *counts)
    server.client_state = _extended(trained.client_state, server.client_state, *counts)
    for name, stack in trained.store.stacks.items():
        if stack.shape == server.store.shape(name):  # otherwise it depends on the clients' samples
            values = stack[:]
            server.store.share(name, values[0] if stack.shared else values.mean(0))
            if not stack.shared:
                server.store.write(old, {name: values})
    server.local.stacks = {name: server.store.stacks[name].copy() for name in trained.local.stacks}
    server.local.write(old, {name: stack[:] for name, stack in trained.local.stacks.items()})
    server.participants = torch.arange(trained.clients, server.clients)
    dispatch(server, method.admit(server), "admit")
    server.store.write(server.participant_ids, server.received)
    server.local.write(server.participant_ids, {name: server.received[name] for name in server.local.stacks})


def _extended(old: State, new: State, trained: int, clients: int) -> State:
    """The ``old`` state of ``trained`` clients, with the rows and columns of new clients from ``new``.

    A tensor keeps its old value if it has no counterpart or if sizes other than the clients' differ.
    """
    extended: State = {}
    for name, mine in old.items():
        theirs = new.get(name)
        if isinstance(mine, dict):
            extended[name] = _extended(mine, theirs or {}, trained, clients)
            continue
        extended[name] = mine.clone()
        if theirs is None or mine.dim() != theirs.dim():
            continue
        sizes = set(zip(mine.shape, theirs.shape, strict=True))
        if all(own == other or (own, other) == (trained, clients) for own, other in sizes):
            extended[name] = theirs.clone(memory_format=torch.contiguous_format)
            extended[name][tuple(map(slice, mine.shape))] = mine
    return extended


def _totals(server: Server, method: Method, moment: Moment) -> tuple[Tensor, Tensor]:
    """Correct predictions (K,) and summed cross-entropy (K,) of the participants' models."""
    part = slice(server.clients - len(server.participants), None)
    samples = server.federation.test[part]
    tested = [k for k, own in enumerate(samples) if len(own)]
    models = personal_models(server, method, moment, part)
    tensors = {name: stack[tested] for name, stack in models.items()}
    clients = server.participants[tested]
    sums = totals_of(server, method, clients, tensors, [samples[k] for k in tested])
    totals = torch.zeros(2, len(samples), dtype=torch.float64)
    totals[:, tested] = torch.stack([sums["correct"], sums["loss"]]).cpu()
    correct, loss = totals
    return correct, loss


def _result(server: Server, all_clients: AllClients, totals: Sequence[tuple[Tensor, Tensor]]) -> Unseen:
    """The scores of the unseen clients as received, adapted and from scratch."""
    federation = all_clients.federation
    joined = range(all_clients.order.seen, federation.clients)
    tests = torch.tensor([len(federation.test[client]) for client in joined], dtype=torch.float64)
    sizes = server.sizes[server.participants].cpu()

    def accuracy(correct: Tensor, loss: Tensor) -> Accuracy:
        return averages_of(correct, loss, tests=tests, sizes=sizes, members=tests > 0)

    received, adapted, scratch = (accuracy(*both) for both in totals)
    per_client = [
        UnseenClient(
            all_clients.order.ids[client],
            len(federation.train[client]),
            len(federation.test[client]),
            *(float(100 * correct[k] / tests[k]) if tests[k] else None for correct, _ in totals),
        )
        for k, client in enumerate(joined)
    ]
    return Unseen(received, adapted, scratch, tuple(per_client))
