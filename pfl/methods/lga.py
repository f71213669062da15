"""LGA: late models are extrapolated to the current round, then averaged (leap gradient approximation)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pfl.analysis.similarity import cosines
from pfl.core.hyper import hyper
from pfl.core.lazy import torch
from pfl.engine.mixing import Mixing, per_row
from pfl.engine.types import Server, Tensor
from pfl.methods._clock import Clocked
from pfl.methods._stages import stages

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class LGA(Clocked):
    """Late models are extrapolated to the current round before all arrivals are averaged by size.

    A client that was sent the global model w^t0 returns w_k when the global model is w^s. With the change D =
    w_k - w^t0, and w^t1 the first aggregate after w^t0, stage by stage,

        S = cos(w^t1 - w^t0, D),    S~ = e^S / (e + e^S),
        predicted = D + w^t0 (Eq. 10) or w^s (Eq. 11) + c S~ D * D * (w^s - w^t1).

    Batch norm's statistics are not predicted.

    Source: PLGA's paper, which is SPFL's (anonymous submission to ICLR 2022), Algorithm 2 and Eq. 8-11.
    State: ``server.state["past"][NAME]`` (rounds, *shape), a ring buffer of the global models to which late
        arrivals still refer.
    Evaluated: the global model ("post_aggregation"); the clients' last trained models ("post_local").
    Differs from the authors: the Taylor term has S~ of a stage (their code: the raw cosine of a tensor). c is
        1 as printed, though the derivation gives a minus sign; the term is cubic in changes and too small to
        be visible. ``coefficient`` "consistent" replaces c S~ by -lambda / (lr E), with E the client's steps.
        Delay compensation gives this if D equals -lr E times a gradient; ``taylor`` is then lambda. The
        clock follows the paper's text (their code: ``schedule`` "code").
    """

    family = "asynchronous"

    equation: int = hyper(11, "which equation predicts the late model", choices=(10, 11))
    taylor: float = hyper(1.0, "c of the Taylor term, or lambda where its coefficient is consistent")
    coefficient: str = hyper(
        "printed",
        "of the Taylor term: as printed, or of the dimension that it should have",
        choices=("printed", "consistent"),
    )
    stages: str = hyper(
        "network",
        "the network's stages (extractor, head), one in all, or every tensor",
        choices=("network", "whole", "tensor"),
    )

    def initialise(self, server: Server) -> None:
        length = int(self.periods(server).max()) + 1
        models = {name: server.store[name][:1] for name in server.groups.trainable}
        server.state["past"] = {
            name: model.repeat(length, *[1] * (model.dim() - 1)) for name, model in models.items()
        }

    def dispatch(self, server: Server) -> Mixing:
        for name, past in server.state["past"].items():
            past[(server.round - 1) % len(past)] = server.store[name][0]
        return {}

    def aggregate(self, server: Server) -> Mixing:
        late = self.late(server)
        predicted, _ = self._predictions(server, late)
        return {"all": self.mean(server), **self._leap(server, late, predicted)}

    def _leap(self, server: Server, late: Tensor, predicted: Tensors) -> Tensors:
        """The mean (1, *shape) of all arrivals, with the ``predicted`` models for the ``late`` clients."""
        shares = server.sizes[late] / server.sizes[self.arrivals(server)].sum()
        means = {}
        for name, models in predicted.items():
            leap = models - server.last_trained(name)[late]
            moved = (shares.to(leap.dtype) @ leap.flatten(1)).view(leap.shape[1:])
            means[name] = server.averaged(name, self.mean(server)) + moved
        return means

    def _predictions(self, server: Server, late: Tensor) -> tuple[Tensors, Tensors]:
        """The predicted models of ``late`` clients, (L, *shape) by name, and S~ that broadcasts with them."""
        periods = self.periods(server)[late]
        now = self._past(server, torch.zeros_like(periods))
        start = self._start(server, late, self._past(server, periods))
        first = self._past(server, periods - 1)
        trained = {name: server.last_trained(name)[late] for name in start}
        similarity = self._similarity(server, start, first, trained)
        predicted = {}
        for name, model in trained.items():
            change = model - start[name]
            term = self._coefficient(server, late, similarity[name]) * change**2 * (now[name] - first[name])
            predicted[name] = (model if self.equation == 10 else now[name] + change) + term
        return predicted, similarity

    def _coefficient(self, server: Server, late: Tensor, similarity: Tensor) -> Tensor:
        """The Taylor term's coefficient for models of ``late`` clients; broadcasts like ``similarity``."""
        if self.coefficient == "printed":
            return self.taylor * similarity
        (phase,) = self.phases(server)
        dispatched = (server.round - self.periods(server)[late]).tolist()
        rates = torch.tensor([server.config.lr_in(number) for number in dispatched], device=late.device)
        travelled = rates * server.steps(late, phase).clamp(min=1)
        return (-self.taylor / travelled).to(similarity.dtype).view(similarity.shape)

    def _past(self, server: Server, rounds: Tensor) -> Tensors:
        """The global models at the beginning of the round ``rounds`` (L,) ago: (L, *shape) by name."""
        rings = server.state["past"].items()
        return {name: ring[(server.round - 1 - rounds) % len(ring)] for name, ring in rings}

    def _start(self, server: Server, clients: Tensor, sent: Tensors) -> Tensors:
        """The models from which ``clients`` started, given the global models ``sent`` to them."""
        return sent

    def _similarity(self, server: Server, start: Tensors, reference: Tensors, trained: Tensors) -> Tensors:
        """S~ of the changes from ``start`` (K, *shape) to ``reference`` and to ``trained``."""
        softened = {}
        for names in stages(server.groups, self.stages):
            changes = ({name: end[name] - start[name] for name in names} for end in (reference, trained))
            cosine = cosines(*changes).diagonal()
            for name in names:
                softened[name] = per_row(self._soften(cosine), trained[name])
        return softened

    def _soften(self, cosine: Tensor) -> Tensor:
        """S~ of S: e^S / (e + e^S)."""
        return torch.sigmoid(cosine - 1)
