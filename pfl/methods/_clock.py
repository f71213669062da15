"""The straggler clock of the asynchronous methods: recipients of the model and arrivals of updates."""

from __future__ import annotations

from dataclasses import dataclass

from pfl.core.hyper import hyper
from pfl.core.lazy import torch
from pfl.engine.method import Method, Phase
from pfl.engine.mixing import Average, Mixing, normalised
from pfl.engine.types import Config, Server, Tensor


@dataclass(frozen=True)
class Clocked(Method):
    """Base class of the methods on the clock: the size-weighted mean of all arrivals, stale or not.

    Client k < stragglers has the missing period d = k + 1; all other clients are punctual (d = 0). A client
    receives the global model, and trains immediately, in the rounds s (from 0) with s mod (d + 1) = 0. Its
    model arrives d rounds later, so it takes part in one aggregation and misses d. With ``schedule`` "code"
    (the authors' code), each late arrival is followed by one round in which the straggler is punctual.

    ``server.local`` holds the model that every client trained last, including models that have not arrived
    yet; "post_local" evaluates these. The client store holds the global model, the same for all clients;
    "post_aggregation" evaluates it.
    """

    stragglers: int = hyper(
        5, "clients that miss 1, 2, 3, ... aggregations; at most all but one", low=0, probe=2
    )
    schedule: str = hyper(
        "text",
        "stragglers are always late (paper), or late and punctual in turn (authors' code)",
        choices=("text", "code"),
    )
    steps: int = hyper(0, "minibatch steps of a local training; 0 means the configuration's epochs", low=0)

    def participants(self, server: Server) -> Tensor:
        periods, passed = self._clock(server)
        return ((passed == 0) | (passed > periods)).nonzero().squeeze(1)

    def phases(self, server: Server) -> tuple[Phase, ...]:
        return (Phase(steps=self.steps or None),)

    def aggregate(self, server: Server) -> Mixing:
        return {"all": self.mean(server)}

    def mean(self, server: Server) -> Average:
        """The size-weighted mean of all arrivals."""
        arrivals = self.arrivals(server)
        return Average(normalised(server.sizes[arrivals]), sources=arrivals)

    def warnings(self, config: Config) -> tuple[str, ...]:
        if config.participation < 1:
            return (f"{config.method}: participation is ignored: the straggler clock selects the clients",)
        return ()

    def arrivals(self, server: Server) -> Tensor:
        """(A,) clients whose models arrive in this round."""
        periods, passed = self._clock(server)
        return (passed >= periods).nonzero().squeeze(1)

    def late(self, server: Server) -> Tensor:
        """(L,) clients whose models arrive after the round in which they were sent the global one."""
        periods, passed = self._clock(server)
        return ((passed == periods) & (periods > 0)).nonzero().squeeze(1)

    def periods(self, server: Server) -> Tensor:
        """(n,) aggregations that each client misses; the staleness of its late models in rounds."""
        late = server.client_ids < min(self.stragglers, server.clients - 1)
        return torch.where(late, server.client_ids + 1, 0)

    def _clock(self, server: Server) -> tuple[Tensor, Tensor]:
        """(n,) missing periods, and (n,) rounds since the start of each client's cycle."""
        periods = self.periods(server)
        punctual_turn = (periods > 0) & (self.schedule == "code")
        return periods, (server.round - 1) % (periods + 1 + punctual_turn)
