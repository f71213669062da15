"""PLGA: LGA with a personal model per client, between its own prediction and the global model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pfl.core.hyper import hyper
from pfl.core.lazy import torch
from pfl.engine.method import Moment
from pfl.engine.mixing import Mixing
from pfl.engine.types import Server, Tensor
from pfl.methods.lga import LGA, Tensors


@dataclass(frozen=True)
class PLGA(LGA):
    """LGA with a personal model per client, interpolated between its own model and the global one.

    When a client's model arrives, its personal model becomes, stage by stage,

        (1 - S~) own + S~ w    (Eq. 12 and 14).

    For a late client ``own`` is LGA's prediction, with its S~ and the current global model w. For a punctual
    client it is its trained model, S~ comes from the cosine between its own change and the global model's,
    and w is the new global model. The personal model is kept until the next arrival. With a ``temperature``
    T, S~ is ``e^(S/T) / (e^(1/T) + e^(S/T))``: a lower T gives less weight to the global model if the
    client's change points in another direction.

    Source: PLGA's paper, which is SPFL's (anonymous submission to ICLR 2022), Algorithm 2 and Eq. 8-14.
    State: as in LGA; ``server.state["personal"][NAME]`` (n, *shape), the personal models.
    Evaluated: the personal models ("post_local", the headline); the global model ("post_aggregation"), which
        without ``personal_start`` and at temperature 1 is LGA's.
    Differs from the authors: as in LGA. Punctual clients are personalised as in their code, which the paper
        leaves open. ``temperature`` and ``personal_start``, local training from the personal model instead
        of w^t0, are ours.
    """

    family = "asynchronous"
    headline = "post_local"
    new_client = "The global model, also as its personal model; after its local training, what it trained."

    temperature: float = hyper(
        1.0,
        "temperature of the cosines (our option)",
        low=1e-3,
        search=(0.05, 5.0),
        log=True,
    )
    personal_start: bool = hyper(False, "local training starts from the personal model")

    def initialise(self, server: Server) -> None:
        super().initialise(server)
        names = server.groups.trainable
        server.state["personal"] = {name: server.store[name].clone() for name in names}

    def dispatch(self, server: Server) -> Mixing:
        super().dispatch(server)
        return self._start(server, server.participants, {})

    def aggregate(self, server: Server) -> Mixing:
        late, arrivals = self.late(server), self.arrivals(server)
        predicted, similarity = self._predictions(server, late)
        means = self._leap(server, late, predicted)
        now = self._past(server, torch.zeros_like(late))
        fresh = arrivals[~torch.isin(arrivals, late)]
        start = self._start(server, fresh, self._past(server, torch.zeros_like(fresh)))
        trained = {name: server.last_trained(name)[fresh] for name in start}
        new = {name: means[name].expand(len(fresh), *means[name].shape[1:]) for name in start}
        self._personalise(server, late, similarity, predicted, now)
        self._personalise(server, fresh, self._similarity(server, start, new, trained), trained, new)
        # The server computes the personal models of late clients.
        server.count("personal models", down=len(late) * server.scalars(*server.groups.trainable))
        return {"all": self.mean(server), **means}

    def _personalise(
        self, server: Server, clients: Tensor, similarity: Tensors, own: Tensors, common: Tensors
    ) -> None:
        """Apply Eq. 12 and 14 to ``clients`` (K,); all else is (K, *shape) by name."""
        for name, model in own.items():
            personal = model + similarity[name] * (common[name] - model)
            server.state["personal"][name][clients] = personal

    def _start(self, server: Server, clients: Tensor, sent: Tensors) -> Tensors:
        if not self.personal_start:
            return sent
        return {name: model[clients] for name, model in server.state["personal"].items()}

    def personal(self, server: Server, moment: Moment, clients: slice = slice(None)) -> Mapping[str, Tensor]:
        tensors = super().personal(server, moment, clients)
        if moment == "post_aggregation":
            return tensors
        own = {name: model[clients] for name, model in server.state["personal"].items()}
        return {**tensors, **own}

    def admit(self, server: Server) -> Mapping[str, Tensor]:
        received = server.store.rows(server.participants)
        self._replace(server, received)
        return received

    def adapt(self, server: Server) -> None:
        super().adapt(server)
        self._replace(server, server.trained)

    def _replace(self, server: Server, models: Tensors) -> None:
        """Set the participants' personal models to ``models``, name to (K, *shape)."""
        for name, personal in server.state["personal"].items():
            personal[server.participants] = models[name]

    def _soften(self, cosine: Tensor) -> Tensor:
        return torch.sigmoid((cosine - 1) / self.temperature)
