"""FedPer: a global extractor under personal heads."""

from __future__ import annotations

from dataclasses import dataclass

from pfl.engine.method import Method
from pfl.engine.mixing import Mixing
from pfl.engine.types import Server


@dataclass(frozen=True)
class FedPer(Method):
    """All layers train together; only the extractor is averaged.

    Source: Arivazhagan et al., 2019, https://arxiv.org/abs/1912.00818, Algorithm 1.
    State: only the personal heads.
    Evaluated: the global extractor under the client's own head, without fine-tuning.
    Differs from the authors: the personal layers are the head alone (theirs: one to four blocks).
    """

    family = "personal layers"

    def aggregate(self, server: Server) -> Mixing:
        return {"extractor": server.average()}
