"""LG-FedAvg: global last layers on personal extractors."""

from __future__ import annotations

from dataclasses import dataclass

from pfl.core.hyper import hyper
from pfl.engine.method import Method
from pfl.engine.mixing import Mixing
from pfl.engine.types import Server
from pfl.methods._stages import stages


@dataclass(frozen=True)
class LGFedAvg(Method):
    """All layers train together; only the last ones are averaged, by default the head alone.

    Source: Liang et al., 2020, https://arxiv.org/abs/2001.01523, Algorithm 1. Code compared:
        ``pliang279/LG-FedAvg``.
    State: only the personal extractors.
    Evaluated: the global layers on the client's own ones, without fine-tuning.
    Differs from the authors: training starts from the common initialisation, as in Algorithm 1 (their code:
        from a model that FedAvg has trained); the global layers are averaged by training samples (their code:
        uniformly, and it reports each client's best round on its test set); no ensemble of the clients for
        new data. Their code chooses the number of global layers by data set, here it is ``layers``. PFLlib
        shares the head, as here; FL-bench shares the first convolution and keeps all else personal.
    """

    family = "personal layers"

    layers: int = hyper(1, "last layers that are global; the others are personal", low=1, search=(1, 3))

    def aggregate(self, server: Server) -> Mixing:
        average = server.average()
        shared = stages(server.groups, "layer")[-self.layers :]
        modules = {name.rpartition(".")[0] for names in shared for name in names}
        # Including running statistics if a layer is batch norm.
        return {n: average for n in server.groups["model"] if n.rpartition(".")[0] in modules}
