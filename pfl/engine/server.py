"""The state of a federation that a method's hooks read and change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from pfl.core.config import Config
from pfl.core.errors import InvalidInput
from pfl.core.rng import generator
from pfl.data.federation import Federation
from pfl.data.rule import split
from pfl.engine.client import Batch, Client
from pfl.engine.client_store import ClientStore, CopyOnWriteTensor
from pfl.engine.groups import Groups, tensors_of
from pfl.engine.local_training import (
    ADAPTATION,
    Backend,
    Program,
    Statistic,
    Task,
    Trained,
    minibatch_count,
)
from pfl.engine.method import Method, Phase
from pfl.engine.mixing import Average, Matrix, normalised
from pfl.engine.phase_check import check_phases
from pfl.engine.returned import check_stacks, name_of, wrong_type
from pfl.engine.state import State, apart, memory, rows
from pfl.engine.stopwatch import Stopwatch
from pfl.engine.traffic import Traffic, Uploads
from pfl.engine.transfer import on_device
from pfl.models._network import Network

_HOOKS = {"batches": "phases", ADAPTATION: "adaptation"}
"""The hook that returned the phases of a training, by its purpose."""

LARGEST_ON_DEVICE = 2 << 30  # bytes; a store that could grow larger is kept in host memory


class Server:
    """The server's knowledge and state; there is one server per seed.

    >>> def trained(server, network):
    ...     return len(server.participants)
    >>> (result,) = pfl.simulate("fedavg", clients=4, rounds=2, epochs=1, measure=trained, progress=False)
    >>> result.measurements
    [2, 2]

    Args:
        net: the client's networks, whose tensors are the common initialisation.
        backend: runs local programs, for `train` and `collect`.
        stopwatch: counts the time of the clients' computations.
        template: networks that backends bind tensors to; by default ``net``.

    Attributes:
        program: the clients' local program.
        federation: the clients' data.
        samples: n arrays of pooled indices, each client's training samples.
        held_out: n arrays of the indices that `hold_out` removed from ``samples``.
        positions: (n,) minibatches that each client has drawn from its class stream.
        groups: parameter groups of a client's networks.
        initial: name to (1, *shape), the common initialisation.
        store: the client store, which holds every client's tensors and is mixed by the method.
        local: the tensors that mixing changes, as each client's last local training left them.
        round: the current round, from 1; 0 before the first.
        rounds_read: whether `rounds` was read, so that results may depend on it.
        participants: (K,) clients of the current round.
        participant_ids: the same in host memory, to avoid waiting for the device.
        received: name to (K, *shape), the tensors that the participants started from.
        sent: what else was sent to them, (K, ...) or (1, ...) each; see `pfl.engine.mixing.Sent`.
        trained: name to (K, *shape), the tensors that they trained, for further work by them (`collect`).
        matrices: name to the matrix or value that mixed or replaced the tensor in this round.
        traffic: the traffic of this round.
        state: the method's tensors on the server: name to a tensor, or to a dictionary of tensors by name.
        client_state: the method's tensors of all clients in the same form, (n, ...) each.
    """

    def __init__(
        self,
        config: Config,
        federation: Federation,
        seed: int,
        method: Method,
        net: Network,
        backend: Backend,
        stopwatch: Stopwatch,
        template: Network | None = None,
    ):
        self.config = config
        self.federation = federation
        self.samples: Sequence[np.ndarray] = federation.train
        self.held_out: Sequence[np.ndarray] = ()
        self.positions = torch.zeros(federation.clients, dtype=torch.int64)
        self.seed = seed
        self.round = 0
        self.rounds_read = False
        self.participants = torch.zeros(0, dtype=torch.int64)
        self.state: State = {}
        self.client_state: State = {}
        self.received: dict[str, Tensor] = {}
        self.sent: State = {}
        self.trained: dict[str, Tensor] = {}
        self.matrices: dict[str, Matrix | Tensor] = {}
        self.traffic = Traffic()
        self.groups = Groups(net)
        tensors = tensors_of(net)
        self.initial = {name: tensor.detach().clone().unsqueeze(0) for name, tensor in tensors.items()}
        stored = self.clients * sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        home = torch.device("cpu") if stored > LARGEST_ON_DEVICE else None
        self.store = ClientStore(self.initial, self.clients, home)
        self.local = ClientStore({}, self.clients, home)
        self.program = Program(method, template or net, self.groups, config, federation)
        self._backend = backend
        self._stopwatch = stopwatch
        hook = name_of(method, "initialise")
        returned: object = method.initialise(self)  # type: ignore[func-returns-value]
        if returned is not None:
            raise wrong_type(hook, returned, "None; tensors belong in server.state and server.client_state")
        self.check_state(hook)
        # The method may change its state in place, but not the models that it came from.
        self.state, self.client_state = apart((self.state, self.client_state), memory(self.initial))
        self.to_device()

    def check_state(self, where: str) -> None:
        """Check that the method's state consists of tensors, those of the clients with a row for each.

        Raises:
            InvalidInput: it does not; the message says ``where``.
        """
        check_stacks(f"{where}: state", self.state)
        check_stacks(f"{where}: client_state", self.client_state, self.clients)

    def to_device(self) -> None:
        """Move the method's state to the device of the federation."""
        device = self.federation.device
        self.state = tree_map(lambda tensor: tensor.to(device), self.state)
        self.client_state = tree_map(lambda tensor: tensor.to(device), self.client_state)

    @cached_property
    def _labels(self) -> np.ndarray:
        """(N,) labels of all pooled images."""
        return self.federation.labels.cpu().numpy()

    # ---- what the server knows -------------------------------------------------------------------------

    @property
    def clients(self) -> int:
        """The number of clients, n."""
        return self.federation.clients

    @property
    def rounds(self) -> int:
        """The total number of rounds. Read it here, not in ``config``: once a method has read it, the
        simulation cannot be continued to more rounds."""
        self.rounds_read = True
        return self.config.rounds

    @property
    def processes(self) -> int:
        """The number of processes that share the clients of a call."""
        return self._backend.processes

    @property
    def participants(self) -> Tensor:
        return self._participants

    @participants.setter
    def participants(self, clients: Tensor) -> None:
        self.participant_ids = clients.cpu()
        self._participants = on_device(self.participant_ids, self.federation.device)

    @cached_property
    def client_ids(self) -> Tensor:
        """(n,) the ids of all clients."""
        return torch.arange(self.clients, device=self.federation.device)

    @property
    def others(self) -> Tensor:
        """(n - K,) the clients that do not participate."""
        return self.client_ids[~torch.isin(self.client_ids, self.participants)]

    @property
    def sizes(self) -> Tensor:
        """(n,) training samples of each client, float64."""
        return self.federation.sizes

    @property
    def label_counts(self) -> Tensor:
        """(n, classes) training samples of each client by class, float64."""
        return self.federation.label_counts

    def average(self) -> Average:
        """FedAvg's weights: the participants' shares of their training samples."""
        return Average(normalised(self.sizes[self.participants]))

    def uniform(self) -> Average:
        """The plain mean over the participants."""
        return Average(normalised(torch.ones_like(self.sizes[self.participants])))

    def hold_out(self, share: float) -> None:
        """Move ``share`` of every client's training samples, class by class, to ``held_out``.

        Call it in `Method.initialise`. The seed determines the split.
        """
        kept, self.held_out = split(list(self.samples), self._labels, share, self.seed, "held out")
        stored = self.config.batch_order == "fixed"  # minibatches follow the order of the partition
        self.samples = kept if stored else [np.sort(own) for own in kept]

    def steps(self, clients: Tensor, phase: Phase) -> Tensor:
        """(K,) minibatches that each of ``clients`` draws in a phase, float64."""
        counts = [
            minibatch_count(phase, self.config, len(self.samples[client])) for client in self._ids(clients)
        ]
        return on_device(torch.tensor(counts, dtype=torch.float64), self.federation.device)

    def _ids(self, clients: Tensor) -> list[int]:
        """``clients`` (K,) as integers; those of the participants are already on the host."""
        known = clients is self._participants
        return (self.participant_ids if known else clients).tolist()

    def scalars(self, *groups: str) -> int:
        """Scalars of one client in ``groups``; running statistics count unless they are local."""
        names = {name for group in groups for name in self.groups[group]}
        if self.config.bn_stats == "local":
            names -= set(self.groups["bn_stats"])
        return sum(self.store.shape(name).numel() for name in names)

    @property
    def uploads(self) -> Uploads:
        """The uploaded ``trained`` tensors, by name, (K, *shape); every tensor that is read counts as
        traffic.
        """
        return Uploads(self.trained, self.traffic)

    def count(self, what: str, down: int = 0, up: int = 0) -> None:
        """Count traffic of this round that the engine does not see, or counts wrongly.

        The engine counts every tensor that a mixing moves, that dispatch sends, that aggregation replaces, or
        that the server reads from `uploads`.

        Args:
            what: a name; the name of a tensor replaces what the engine counts for that tensor.
            down, up: scalars over all participants.
        """
        self.traffic.override(what, down, up)

    def personal(self, moment: str, clients: slice | Tensor = slice(None)) -> dict[str, Tensor]:
        """Tensors of ``clients``, a slice or ids, (K, *shape) each: from the store, or as last trained."""
        stacks = self.store.stacks | (self.local.stacks if moment == "post_local" else {})
        return {name: stack[clients] for name, stack in stacks.items()}

    def sample_clients(self) -> Tensor:
        """(K,) clients sampled for this round from a stream that is the same for every method, in host
        memory."""
        count = self.config.participants(self.clients)
        stream = generator(self.seed, "participants", self.round)
        ids = np.sort(stream.choice(self.clients, size=count, replace=False))
        return torch.from_numpy(ids)

    def last_trained(self, name: str) -> CopyOnWriteTensor:
        """(n, *shape), the tensor after each client's last local training; stored from the first call on."""
        self.keep_last_trained([name])
        return self.local.stacks[name]

    def keep_last_trained(self, names: Iterable[str]) -> None:
        """From now on, store some tensors as each client's last local training left them."""
        new = [name for name in names if name not in self.local]
        for name in new:
            self.local.stacks[name] = self.store.stacks[name].copy()
        self.local.write(self.participant_ids, {name: self.trained[name] for name in new})

    def averaged(self, name: str, average: Average) -> Tensor:
        """The mean (1, *shape) of the clients' trained tensors; for `Method.aggregate`.

        With ``average.own``, it is (n, *shape) if the clients have stored different values.
        """
        self.traffic.add_mixing(name, average, self.store.shape(name).numel(), len(self.participants))
        sources = average.sources
        models = self.trained[name] if sources is None else self.last_trained(name)[sources]
        weights = average.weights.to(models.dtype)
        new = (weights @ models.flatten(1)).view(1, *models.shape[1:])
        if average.own is None:
            return new
        stored = self.store[name][:1] if self.store.shared(name) else self.store[name]
        return new + average.own.to(models.dtype) * stored

    # ---- work that clients do for a method --------------------------------------------------------------

    def train(
        self,
        purpose: str,
        clients: Tensor,
        tensors: Mapping[str, Tensor],
        phases: Sequence[Phase],
    ) -> Trained:
        """Let ``clients`` (K,) train outside the round's own training, from ``tensors`` (K, *shape).

        Args:
            purpose: selects the random streams, together with the round.
        """
        return self._run(self.task(purpose, clients, tensors, phases, {}))

    def adapt(self, phases: Sequence[Phase]) -> None:
        """Let the participants train what they received, and store the result without mixing.

        For `Method.adapt`. The learning rate is that of the configuration, without a schedule.
        """
        task = self.task(ADAPTATION, self.participants, self.received, phases, self.sent)
        self.receive(task, self._run(task))
        self.store.write(self.participant_ids, self.trained)

    def receive(self, task: Task, trained: Trained) -> None:
        """Receive the participants' results. Only this advances their class streams."""
        self.positions[task.clients] += torch.tensor(task.batches_consumed())
        self.trained = trained.tensors
        for name, stacks in self.client_state.items():
            written = partial(_written, self.participants)
            self.client_state[name] = tree_map(written, stacks, trained.state[name])
        self.local.write(self.participant_ids, {name: self.trained[name] for name in self.local.stacks})

    def _run(self, task: Task) -> Trained:
        with self._stopwatch.running():
            return self._backend.train(task)

    def task(
        self,
        purpose: str,
        clients: Tensor,
        tensors: Mapping[str, Tensor],
        phases: Sequence[Phase],
        sent: State,
    ) -> Task:
        """The local training of ``clients`` as a task for a backend."""
        hook = _HOOKS.get(purpose, f"train({purpose!r})")
        check_phases(f"{type(self.program.method).__name__}.{hook}", phases, self.groups)
        ids = self._ids(clients)
        received = tree_map(lambda stack: stack.expand(len(ids), *stack.shape[1:]), sent)
        samples = [self.samples[client] for client in ids]
        if self.config.batch_order == "class_stream":
            samples = [self._by_class(client, own) for client, own in zip(ids, samples, strict=True)]
        return Task(
            purpose,
            self.round,
            [self.program] * len(ids),
            [phases] * len(ids),
            ids,
            [self.seed] * len(ids),
            samples,
            self.positions[ids].tolist(),
            tensors,
            {**rows(self.client_state, clients), **received},
        )

    def _by_class(self, client: int, samples: np.ndarray) -> np.ndarray:
        """``samples`` grouped by class, with a random order of the classes for each client.

        LGA and PLGA store a client's classes in the order in which it drew them. A partition keeps ascending
        indices, so the order is drawn here from the run's seed.
        """
        rank = generator(self.seed, "class order", client=client).permutation(self.federation.classes)
        return samples[np.argsort(rank[self._labels[samples]], kind="stable")]

    def collect(
        self,
        statistic: Statistic,
        clients: Tensor,
        tensors: Mapping[str, Tensor],
        samples: Sequence[np.ndarray] | None = None,
        each: bool = False,
    ) -> dict[str, Tensor]:
        """Sums of a statistic over data, for the models ``tensors`` (K, *shape) in evaluation mode.

        Args:
            clients: (K,) the client whose state each model uses.
            samples: K arrays of pooled indices; by default the clients' training samples.
            each: return the statistic of each sample instead of the sum.

        Returns:
            Name to (K, ...), float64; with ``each`` as in `pfl.engine.local_training.Backend.collect`.

        Raises:
            InvalidInput: the statistic does not return tensors by name.
        """
        if samples is None:
            samples = [self.samples[client] for client in self._ids(clients)]
        state = rows(self.client_state, clients)
        with self._stopwatch.running():
            return self._backend.collect(self.program, _checked(statistic), tensors, state, samples, each)


def _checked(statistic: Statistic) -> Statistic:
    """``statistic`` with a check of what it returns."""
    where = getattr(statistic, "__qualname__", "statistic").rpartition("<locals>.")[2]

    def sums(client: Client, batch: Batch) -> Mapping[str, Tensor]:
        values: object = statistic(client, batch)
        if not isinstance(values, Mapping):
            raise wrong_type(where, values, "a mapping from names to tensors")
        for name, value in values.items():
            if not isinstance(value, Tensor):
                accepted = "a tensor, as batch.sum(...) of a value per sample"
                raise InvalidInput(f"{where}: {name}", f"a value of type {type(value).__name__}", accepted)
        return values

    return sums


def _written(rows: Tensor, stack: Tensor, values: Tensor) -> Tensor:
    """``stack`` (n, ...) with ``values`` (K, ...) in its ``rows`` (K,): in place, unless it was expanded."""
    stack = stack.contiguous()
    stack[rows] = values
    return stack
