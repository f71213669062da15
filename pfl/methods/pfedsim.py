"""pFedSim: extractors mixed by the similarity of the clients' heads; personal heads."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pfl.core.hyper import hyper
from pfl.core.lazy import torch
from pfl.core.rounding import whole_part
from pfl.engine.method import Method
from pfl.engine.mixing import Dense, Dispatch, Mixing, normalised
from pfl.engine.types import Server, Tensor


@dataclass(frozen=True)
class PFedSim(Method):
    """FedAvg for a share of the rounds, then extractors mixed by the similarity of the heads.

    After the warm-up a participant starts from its own head and from the mean of all stored extractors,
    weighted by the similarity of the heads. A pair's weight is 0 until both have taken part in the same
    round. It is refreshed whenever they do.

    Source: Tan et al., 2023, https://arxiv.org/abs/2305.15706, Algorithm 2 and Eq. 3.
    State: ``server.state["affinity"]`` (n, n), a weight per pair; its diagonal is the largest that the cap
        allows.
    Evaluated: each client's stored model, the last that it trained, without mixing or fine-tuning. A client
        that has not trained since the warm-up has the warm-up's global model.
    Differs from the authors: the mean cosine over classes is taken before the logarithm, as in their code
        (paper: afterwards, ``affinity``); cosines are capped, since -log(1 - cosine) is unbounded.
    """

    family = "mixing"
    new_client = (
        "The mixture of the extractors by the similarity of a head that it trains for this; the mean head."
    )

    rho: float = hyper(0.5, "share of the rounds that are warm-up", low=0.0, high=1.0, search=(0.0, 1.0))
    affinity: str = hyper(
        "mean_then_log",
        "order of the logarithm and the mean over classes",
        choices=("mean_then_log", "log_then_mean"),
    )
    # The paper's -log(1 - cos) is unbounded; the cap stands in for its "similarity in [0, 1]".
    cosine_cap: float = hyper(1 - 1e-4, "largest cosine before the logarithm", low=1e-6, high=1 - 1e-12)
    epsilon: float = hyper(1e-8, "added to the product of norms", low=1e-12)

    def initialise(self, server: Server) -> None:
        server.state["affinity"] = torch.eye(server.clients, dtype=torch.float64) * -math.log(
            1 - self.cosine_cap
        )

    def dispatch(self, server: Server) -> Mixing:
        if self._generalising(server):
            return {}
        rows = server.state["affinity"][server.participants]
        server.count("head", down=len(rows) * server.scalars("head"))  # the client's own, with the extractor
        return {"extractor": Dense(normalised(rows))}

    def aggregate(self, server: Server) -> Mixing:
        if self._generalising(server):
            return {"all": server.average()}
        pair = server.participants
        heads = {name: server.uploads[name] for name in server.groups["head"]}
        fresh = self._affinities(heads["head.weight"].double())
        fresh.fill_diagonal_(-math.log(1 - self.cosine_cap))
        server.state["affinity"][pair[:, None], pair] = fresh
        return {}

    def admit(self, server: Server) -> Dispatch:
        if self._generalising(server):
            return {}
        present, others = server.participants, server.others
        start = server.store.rows(present)
        heads = server.train("new heads", present, start, self.phases(server)).tensors["head.weight"]
        known = server.store["head.weight"][others]
        affinities = self._affinities(torch.cat([heads, known]).double())[: len(present), len(present) :]
        alike = affinities.sum(1, keepdim=True) > 0
        matrix = affinities.new_zeros(len(present), server.clients)
        matrix[:, others] = normalised(torch.where(alike, affinities, 1.0))
        return {"extractor": Dense(matrix)}

    def warm_up(self, rounds: int) -> int:
        return whole_part(self.rho, rounds)

    def _generalising(self, server: Server) -> bool:
        return server.round <= self.warm_up(server.rounds)

    def _affinities(self, heads: Tensor) -> Tensor:
        """Affinities (K, K) of the head weights (K, classes, d)."""
        norms = heads.norm(dim=-1)
        products = torch.einsum("icd,jcd->ijc", heads, heads)
        cosines = products / (norms[:, None] * norms[None] + self.epsilon)
        if self.affinity == "mean_then_log":
            return -torch.log(1 - cosines.mean(-1).clamp(0, self.cosine_cap))
        return -torch.log(1 - cosines.clamp(0, self.cosine_cap)).mean(-1)
