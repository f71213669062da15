"""FedAsync: arrivals are blended into the global model one after another, stale ones less."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from pfl.core.hyper import hyper
from pfl.core.lazy import torch
from pfl.core.rng import generator
from pfl.engine.method import Phase
from pfl.engine.mixing import Average, Mixing
from pfl.engine.types import Batch, Client, Server, Tensor
from pfl.methods._clock import Clocked


@dataclass(frozen=True)
class FedAsync(Clocked):
    """Each arrival x of staleness k, in rounds, moves the global model w to ``(1 - a_k) w + a_k x``.

        a_k = alpha s(k),    s(k) = 1,   (k + 1)^-a,   or   1 if k <= b, else 1 / (a (k - b) + 1).

    Clients minimise ``loss + rho/2 ||x - x_start||^2``. The arrivals of a round are processed in order of
    decreasing staleness, with ties in random order, since the last one weighs most. With ``blend`` "batch"
    the server blends in the a_k-weighted mean of all arrivals at once, with the mean of a_k as its weight.
    "client" is PLGA's code: a late client itself blends its model into the global one with weight a_k, and
    the server takes the plain mean.

    Source: Xie et al., 2019, https://arxiv.org/abs/1903.03934, Algorithm 1.
    State: only the models in flight.
    Evaluated: the global model ("post_aggregation"); the clients' last trained models ("post_local").
    Differs from the authors: updates arrive on the round clock of PLGA and not one by one, so staleness is
        counted in rounds and not in updates of the server. Batch norm's running statistics are blended like
        the weights. The hinge's slope has the default and the search range of the polynomial's exponent;
        theirs are 10 and 4.
    """

    family = "asynchronous"

    alpha: float = hyper(0.6, "weight of a fresh arrival", low=0.0, high=1.0, search=(0.1, 0.95))
    staleness: str = hyper(
        "polynomial",
        "the function s",
        choices=("constant", "polynomial", "hinge"),
        search=("constant", "polynomial", "hinge"),
    )
    a: float = hyper(
        0.5,
        "exponent of the polynomial, slope of the hinge",
        low=0.0,
        search=(0.0, 2.0),
        when=("staleness", "polynomial", "hinge"),
    )
    b: int = hyper(
        4,
        "staleness up to which the hinge is 1",
        low=0,
        search=(0, 10),
        when=("staleness", "hinge"),
        probe=1,
    )
    rho: float = hyper(0.005, "weight of the proximal term", low=0.0, search=(1e-5, 1e-1), log=True)
    blend: str = hyper(
        "sequential",
        "arrivals one by one, all at once, or blended by the client (PLGA's code)",
        choices=("sequential", "batch", "client"),
    )

    def phases(self, server: Server) -> tuple[Phase, ...]:
        return tuple(dataclasses.replace(phase, gradient=self._proximal) for phase in super().phases(server))

    def aggregate(self, server: Server) -> Mixing:
        arrivals, staleness = self._in_order(server)
        alpha = self.alpha * self._decay(staleness)
        if self.blend == "client":
            alpha = torch.where(staleness > 0, alpha, 1.0)
        if self.blend == "sequential":
            # Each later arrival j shrinks the weight of arrival i by the factor 1 - a_j.
            left = torch.cat([(1 - alpha).flip(0).cumprod(0).flip(0), torch.ones_like(alpha[:1])])
            weights, own = alpha * left[1:], left[0]
        else:
            weights, own = alpha / len(alpha), 1 - alpha.mean()
        return {"all": Average(weights, sources=arrivals, own=own)}

    def _proximal(self, client: Client, batches: tuple[Batch, ...]) -> tuple[dict[str, Tensor], Tensor]:
        return client.pulled(*client.gradient(self.loss, batches[0]), self.rho)

    def _in_order(self, server: Server) -> tuple[Tensor, Tensor]:
        """(A,) arrivals in the order of their processing, and their staleness in rounds."""
        arrivals = self.arrivals(server)
        shuffle = generator(server.seed, "fedasync order", server.round).permutation(len(arrivals))
        arrivals = arrivals[torch.as_tensor(shuffle, device=arrivals.device)]
        staleness = self.periods(server)[arrivals] * torch.isin(arrivals, self.late(server))
        order = staleness.argsort(stable=True, descending=True)
        return arrivals[order], staleness[order].double()

    def _decay(self, staleness: Tensor) -> Tensor:
        """s(k)."""
        if self.staleness == "constant":
            return torch.ones_like(staleness)
        if self.staleness == "polynomial":
            return (staleness + 1) ** -self.a
        return torch.where(staleness <= self.b, 1.0, 1 / (self.a * (staleness - self.b).clamp(min=0) + 1))
