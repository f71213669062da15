"""FedPer: a global extractor under personal heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pfl.engine.method import Method
from pfl.engine.mixing import Mixing

if TYPE_CHECKING:
    from pfl.engine.server import Server


@dataclass(frozen=True)
class FedPer(Method):
    """All layers train together; only the extractor is averaged. Evaluated without fine-tuning."""

    paper = "Arivazhagan et al., 2019, Algorithm 1 (one personal layer, the head)"

    def aggregate(self, server: Server) -> Mixing:
        return {"extractor": server.average()}
