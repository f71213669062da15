"""LG-FedAvg: a global head on personal extractors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pfl.engine.method import Method
from pfl.engine.mixing import Mixing

if TYPE_CHECKING:
    from pfl.engine.server import Server


@dataclass(frozen=True)
class LGFedAvg(Method):
    """All layers train together; only the head is averaged.

    Source: Liang et al., 2020, https://arxiv.org/abs/2001.01523, Algorithm 1.
    State: none but the personal extractors.
    Evaluated: the global head on the client's own extractor, without fine-tuning.
    Differs from the authors: the global layers are the head alone (theirs: the last one or more); training
        starts from the common initialisation (their code: from a model that FedAvg has trained); the head is
        averaged by training samples (their code: uniformly); no ensemble of the clients for new data.
    """

    family = "personal layers"

    def aggregate(self, server: Server) -> Mixing:
        return {"head": server.average()}
