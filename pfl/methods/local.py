"""Local training: every client trains alone, nothing is sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pfl.engine.hyper import hyper
from pfl.engine.method import Method

if TYPE_CHECKING:
    from torch import Tensor

    from pfl.engine.server import Server


@dataclass(frozen=True)
class Local(Method):
    """The participants of a round train their own models; all groups are personal.

    ``all_train``: everybody trains in every round, as clients that are their own masters would; the default
    is as much training as the federated methods get.
    """

    paper = "baseline of all five papers"

    all_train: bool = hyper(False, "all clients train in every round, whatever the participation")

    def participants(self, server: Server) -> Tensor:
        return server.everybody if self.all_train else super().participants(server)
