"""Local: every client trains alone, without communication."""

from __future__ import annotations

from dataclasses import dataclass

from pfl.core.hyper import hyper
from pfl.core.lazy import torch
from pfl.engine.method import Method
from pfl.engine.mixing import Dispatch
from pfl.engine.types import Server, Tensor


@dataclass(frozen=True)
class Local(Method):
    """The participants of a round train their own models; all groups are personal.

    Source: none; the baseline of four of the five papers, not of PFedCS.
    State: none.
    Evaluated: each client's own model. A client that never took part has the common initialisation.
    Differs from the authors: by default only participants train, as in FedSimSup (section 4.1), so that
        clients train as much as with the federated methods; with ``all_train`` every client trains in every
        round.
    """

    family = "baseline"
    new_client = "The common initialisation."

    all_train: bool = hyper(False, "all clients train in every round, whatever the participation")

    def participants(self, server: Server) -> Tensor:
        return torch.arange(server.clients) if self.all_train else super().participants(server)

    def admit(self, server: Server) -> Dispatch:
        return server.initial
