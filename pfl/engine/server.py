"""The state of one federation under way, as a method's hooks see it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pfl.config import Config
from pfl.data.federation import Federation
from pfl.engine.groups import Groups
from pfl.engine.mixing import Average, Bank, Dense, Identity, Mixing, check_rows, mixed, normalised
from pfl.engine.streams import generator
from pfl.models._network import Network


class Server:
    """What the server knows and stores. One for each seed.

    Attributes:
        federation: the clients' data; ``sizes`` (n,) and ``label_counts`` (n, classes) of the training part.
        groups: parameter groups of a client's networks.
        bank: the last value of every client's tensors, mixed as the method says.
        local: the tensors that mixing changes, as each client's last local training left them.
        round: the current round, from 1; 0 before the first.
        participants: (K,) clients of the current round.
        received: name to (K, *shape), what the participants started from.
        uploads: name to (K, *shape), what they trained.
        state: the method's tensors on the server.
        client_state: the method's tensors of all clients, (n, *shape) each.
    """

    def __init__(self, config: Config, federation: Federation, seed: int):
        self.config = config
        self.federation = federation
        self.seed = seed
        self.rounds = config.rounds
        self.round = 0
        self.state: dict[str, Tensor] = {}
        self.client_state: dict[str, Tensor] = {}
        self.received: dict[str, Tensor] = {}
        self.uploads: dict[str, Tensor] = {}
        self._draws = [
            draw.to(federation.device) for draw in draw_participants(seed, config, federation.clients)
        ]

    def hold(self, net: Network) -> None:
        """Fill the bank with the common initialisation, the tensors of ``net``."""
        self.groups = Groups(net)
        tensors = {**dict(net.named_parameters()), **dict(net.named_buffers())}
        initial = {name: tensor.detach().clone().unsqueeze(0) for name, tensor in tensors.items()}
        self.bank = Bank(initial, self.clients)
        self.local = Bank({}, self.clients)

    def settle(self) -> None:
        """Bring the method's state to the device of the federation."""
        for tensors in (self.state, self.client_state):
            for name, tensor in tensors.items():
                tensors[name] = tensor.to(self.federation.device)

    @property
    def clients(self) -> int:
        return self.federation.clients

    @property
    def sizes(self) -> Tensor:
        return self.federation.sizes

    @property
    def label_counts(self) -> Tensor:
        return self.federation.label_counts

    @property
    def participants(self) -> Tensor:
        return self._draws[self.round - 1]

    def average(self) -> Average:
        """FedAvg's weights: the participants' shares of their training samples."""
        return Average(normalised(self.sizes[self.participants]))

    def begin_round(self, dispatch: Mixing) -> None:
        """Give every participant what it starts from."""
        self.received = self.bank.rows(self.participants)
        self._matrices = self.groups.resolve(dispatch, self.config.bn_stats)
        for name, matrix in self._matrices.items():
            check_rows(matrix)
            if isinstance(matrix, Dense):
                self.received[name] = mixed(self.bank[name], matrix)

    def end_round(self, aggregate: Mixing) -> None:
        """Put the uploads into the bank and mix its rows."""
        matrices = self.groups.resolve(aggregate, self.config.bn_stats)
        for name, matrix in matrices.items():
            check_rows(matrix)
            upload = self.uploads[name]
            if name in self.local or not isinstance(matrix, Identity):
                if name not in self.local:
                    self.local.tensors[name] = self.bank.tensors[name]
                self.local.write(name, self.participants, upload)
            if isinstance(matrix, Average):
                weights = matrix.weights.to(upload.dtype)
                self.bank.tensors[name] = (weights @ upload.flatten(1)).view(1, *upload.shape[1:])
            else:
                self.bank.write(name, self.participants, upload)
            if isinstance(matrix, Dense):
                self.bank.mix(name, matrix)
            if not isinstance(matrix, Identity):
                self._matrices[name] = matrix

    def scalars(self, *groups: str) -> int:
        """Scalars of one client in ``groups``, statistics only where they are mixed."""
        names = {name for group in groups for name in self.groups[group]}
        if self.config.bn_stats == "local":
            names -= set(self.groups["bn_stats"])
        return sum(self.bank.tensors[name][0].numel() for name in names)

    def mixed_scalars(self) -> int:
        """Scalars of one client that some mixing of this round moves between clients."""
        return sum(
            self.bank.tensors[name][0].numel()
            for name, matrix in self._matrices.items()
            if not isinstance(matrix, Identity)
        )

    def personal(self, moment: str) -> dict[str, Tensor]:
        """Every client's evaluated tensors, (n, *shape) each."""
        tensors = {name: self.bank[name] for name in self.bank.tensors}
        if moment == "post_local":
            tensors.update({name: self.local[name] for name in self.local.tensors})
        return tensors


def draw_participants(seed: int, config: Config, clients: int) -> list[Tensor]:
    """The participants of every round, drawn before training: the same for every method of a comparison."""
    count = max(1, math.floor(config.participation * clients + 1e-9))
    draws = []
    for round in range(1, config.rounds + 1):
        drawn = generator(seed, "participants", round).choice(clients, size=count, replace=False)
        draws.append(torch.from_numpy(drawn).sort().values)
    return draws
