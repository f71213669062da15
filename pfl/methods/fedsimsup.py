"""FedSimSup: personal supervisors, and models that the server mixes for absent clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pfl.core.hyper import hyper
from pfl.core.lazy import torch
from pfl.core.rng import generator
from pfl.engine.method import Method, Phase
from pfl.engine.mixing import Dense, Dispatch, Mixing, normalised
from pfl.engine.types import Client, Config, Federation, Network, Server, Tensor

MIXED = ("T", "C", "L")


@dataclass(frozen=True)
class FedSimSup(Method):
    """Two networks per client with summed logits: a supervisor that is never sent, and a mixed model.

    The model of a client that misses a round is mixed with those of the participants, weighted by the
    similarity of label proportions. With mixed kinds a client holds one supervisor of each kind, but only the
    client's own kind is used and trained; accuracies are also reported by kind. The paper's "nosim" is
    ``exponent`` 0; T, C and L in its Table 3 are the groups of ``supervisor`` "mixed".

    In the published text the weight of the mixture, 1 - alpha, is multiplied in round t of T by

        beta = 1 while t < c T^gamma, else (c T^gamma / t)^2.

    This factor is off unless ``damping``, c, is above 0.

    Source: the anonymous submission "Personalized Federated Learning with Similarity Information Supervisor",
        Algorithm 1 and Eq. 7-9, whose tables are reproduced here. Published, with beta and eight competitors
        instead of seven, as Liu et al., Personalized Federated Learning under Local Supervision, ICCV 2025.
        Here beta comes from third-party code, which has c = 40 and gamma = 3/7, because neither the published
        text nor its repository was available.
    State: ``server.state["similarity"]`` (n, n), cosines of the clients' label proportions;
        ``server.client_state["kind"]`` (n, kinds), each client's kind of supervisor.
    Evaluated: the summed logits of the client's stored model and its supervisor, without fine-tuning.
    Differs from the authors: the supervisors' architectures are our choice, since the paper gives none. A
        transformer has a smaller learning rate, since it diverges at the common one: its gradients are scaled
        down, but not its weight decay. ``supervisor`` "none", where the model trains for the sum of both
        numbers of epochs, and ``mixes`` "everyone" are our additions.
    """

    family = "mixing"
    new_client = "The mixture of all models by the similarity of label proportions; the mean supervisor."

    supervisor_epochs: int = hyper(2, "tau_s: epochs of the supervisor", low=1, search=(1, 5))
    model_epochs: int = hyper(3, "tau_theta: epochs of the model", low=1, search=(1, 5))
    supervisor_lr: float = hyper(
        1.0,
        "the supervisor's learning rate relative to the model's",
        low=0.0,
        search=(0.1, 10.0),
        log=True,
        when=("supervisor", "L", "C", "T", "mixed"),
    )
    transformer_lr: float = hyper(
        0.1, "a transformer's learning rate relative to other supervisors'", low=0.0, high=1.0
    )
    supervisor: str = hyper(
        "L",
        "small network of the model's kind (L), smaller CNN (C), transformer (T), one of them drawn for each "
        "client (mixed), or none",
        choices=("L", "C", "T", "mixed", "none"),
    )
    supervisor_size: float = hyper(
        1 / 6,
        "share of the model's parameters that an L has",
        choices=(1 / 12, 1 / 6, 1 / 3, 1 / 2),
        search=(1 / 12, 1 / 6, 1 / 3, 1 / 2),
        when=("supervisor", "L", "mixed"),
    )
    exponent: float = hyper(
        1.0, "exponent of the similarity; 0 makes all pairs equally similar", low=0.0, search=(0.0, 8.0)
    )
    mixes: str = hyper("absent", "clients whose model is mixed after a round", choices=("absent", "everyone"))
    damping: float = hyper(0.0, "c of the published text's factor beta; 0 means no such factor", low=0.0)
    damping_exponent: float = hyper(3 / 7, "gamma of the factor beta", low=0.0, high=1.0)

    def client_network(self, network: Network, federation: Federation) -> Network:
        from pfl.models._supervisors import supervisor

        shape, classes = federation.shape, federation.classes
        supervisors = {
            kind: supervisor(kind, shape, classes, network, self.supervisor_size) for kind in self._kinds
        }
        network.add_module("supervisor", torch.nn.ModuleDict(supervisors))
        return network

    def initialise(self, server: Server) -> None:
        proportions = torch.nn.functional.normalize(server.label_counts, dim=1)
        server.state["similarity"] = (proportions @ proportions.T).clamp(0, 1)
        if self._kinds:
            drawn = generator(server.seed, "supervisors").integers(len(self._kinds), size=server.clients)
            kinds = torch.nn.functional.one_hot(torch.from_numpy(drawn), len(self._kinds))
            server.client_state["kind"] = kinds.to(server.federation.dtype)

    def phases(self, server: Server) -> tuple[Phase, ...]:
        if not self._kinds:
            return (Phase(self.supervisor_epochs + self.model_epochs, trains=("model",)),)
        return (
            Phase(self.supervisor_epochs, trains=("supervisor",), lr=self.supervisor_lr),
            Phase(self.model_epochs, trains=("model",)),
        )

    def logits(self, client: Client, x: Tensor) -> Tensor:
        logits: Tensor = client.net(x)
        for number, kind in enumerate(self._kinds):
            second = client.net.get_submodule(f"supervisor.{kind}")(x)
            if kind == "T":
                second = self.transformer_lr * second + (1 - self.transformer_lr) * second.detach()
            logits = logits + client.state["kind"][number] * second
        return logits

    def aggregate(self, server: Server) -> Mixing:
        if server.round == 1:
            server.count("label proportions", up=server.label_counts.numel())  # once, by every client
        present = server.participants
        chosen = torch.ones(server.clients, dtype=torch.bool, device=present.device)
        chosen[present] = self.mixes == "everyone"
        rows = chosen.nonzero().squeeze(1)
        others = rows[:, None] != present
        similarity = others * server.state["similarity"][rows][:, present] ** self.exponent
        total = similarity.sum(1)
        mean_size = (others * server.sizes[present]).sum(1) / others.sum(1).clamp(min=1)
        own = server.sizes[rows] / (server.sizes[rows] + mean_size)
        if (beta := self._beta(server)) < 1:
            own = 1 - beta * (1 - own)
        own = torch.where(total > 0, own, 1.0)  # no similar client took part: the client keeps its model
        shares = similarity / torch.where(total > 0, total, 1.0)[:, None]
        return {"model": Dense((1 - own)[:, None] * shares, rows=rows, sources=present, own=own)}

    def admit(self, server: Server) -> Dispatch:
        similarity = server.state["similarity"][server.participants] ** self.exponent
        similarity[:, server.participants] = 0  # new clients have no model yet
        alike = similarity.sum(1, keepdim=True) > 0
        uniform = torch.ones_like(similarity).index_fill(1, server.participants, 0)
        return {"model": Dense(normalised(torch.where(alike, similarity, uniform)))}

    def _beta(self, server: Server) -> float:
        """The factor of this round's mixture."""
        if not self.damping:
            return 1.0
        threshold = self.damping * server.rounds**self.damping_exponent
        return float(min(1.0, (threshold / server.round) ** 2))

    def client_groups(self, server: Server) -> Mapping[str, Tensor]:
        if self.supervisor != "mixed":
            return {}
        return {kind: server.client_state["kind"][:, number] > 0 for number, kind in enumerate(MIXED)}

    def warnings(self, config: Config) -> tuple[str, ...]:
        said = []
        if config.participation == 1 and self.mixes == "absent":
            said.append("fedsimsup: with participation 1 no client is ever absent, so nothing is mixed")
        epochs = self.supervisor_epochs + self.model_epochs
        if epochs != config.epochs:
            said.append(f"fedsimsup: supervisor and model train for {epochs} epochs, not {config.epochs}")
        return tuple(said)

    @property
    def _kinds(self) -> tuple[str, ...]:
        """The kinds of supervisor that each client holds."""
        return {"mixed": MIXED, "none": ()}.get(self.supervisor, (self.supervisor,))
