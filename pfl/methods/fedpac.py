"""FedPAC: a global extractor aligned to class prototypes, and heads combined for each client."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pfl.core.hyper import hyper
from pfl.core.lazy import torch
from pfl.engine.method import Method, Phase
from pfl.engine.mixing import Dense, Dispatch, Mixing, Sent, normalised
from pfl.engine.types import Batch, Client, Config, Server, Tensor
from pfl.methods._prototypes import class_means, features

LEAST_WEIGHT = 1e-3
"""Heads with a smaller weight are left out of a combination."""


@dataclass(frozen=True)
class FedPAC(Method):
    """A global extractor aligned to class prototypes; each client gets its own combination of all heads.

    The head trains first, on a frozen extractor. Then the extractor trains under the frozen head, from the
    second round on with ``loss + lambda mean_b,d (f(x_b) - prototype of y_b)^2``. Extractors are averaged.
    The prototypes are the class means of features after training, averaged by class counts. The heads of
    participants j are combined for participant i with the weights a on the simplex that minimise

        sum_j v_j a_j^2 + sum_c ||h_i[c] - sum_j a_j h_j[c]||^2,

    where h_j[c] is the mean feature of class c times its share of the client's samples, and v_j = (E||f||^2 -
    sum_c ||h_j[c]||^2) / m_j. Both are computed with the extractor as received.

    Source: Xu et al., ICLR 2023, https://arxiv.org/abs/2306.11867, Algorithm 1.
    State: ``server.state["prototypes"]`` (classes, d), and which are ``known``; of the participants, before
        training, ``means`` (K, classes, d) and ``variances`` v (K,).
    Evaluated: the global extractor under the client's own combined head; the authors evaluate after local
        training ("post_local").
    Differs from the authors: the head's epochs are part of the configuration's (theirs: one more), so that
        all methods train for the same total; a class without a prototype is pulled towards the client's own
        mean before training; statistics are taken in evaluation mode; the head's rate is the extractor's by
        default (theirs: ten times as high). The traffic counts a target for every class, known or not.
    """

    family = "personal layers"

    lam: float = hyper(
        1.0, "lambda: weight of the distance to prototypes", low=0.0, search=(1e-2, 30.0), log=True
    )
    head_epochs: int = hyper(1, "epochs of the head, part of the configuration's", low=1)
    head_lr: float = hyper(
        1.0,
        "the head's learning rate relative to the extractor's (authors: 0.1 to 0.01)",
        low=0.0,
        search=(0.1, 10.0),
        log=True,
    )

    def initialise(self, server: Server) -> None:
        classes = server.federation.classes
        server.state["prototypes"] = torch.zeros(classes, features(server), dtype=torch.float64)
        server.state["known"] = torch.zeros(classes, dtype=torch.bool)

    def dispatch(self, server: Server) -> Dispatch:
        means, squares = class_means(server, server.store.rows(server.participants))
        shares = self._shares(server)
        spread = squares - (shares * means).square().sum((1, 2))
        server.state["means"] = means
        server.state["variances"] = spread.clamp(min=0) / server.sizes[server.participants]
        return {"targets": Sent(self._targets(server))}

    def phases(self, server: Server) -> tuple[Phase, ...]:
        rest = max(server.config.epochs - self.head_epochs, 1)
        return (
            Phase(self.head_epochs, trains=("head",), lr=self.head_lr),
            Phase(rest, trains=("extractor",), loss=self._aligned if server.round > 1 else None),
        )

    def aggregate(self, server: Server) -> Mixing:
        means, _ = class_means(server, server.trained)
        counts = server.label_counts[server.participants]
        # Class means before and after training, class counts, and a variance for each participant.
        server.count("statistics", up=2 * means.numel() + counts.numel() + len(means))
        totals = counts.sum(0)[:, None]
        fresh = (counts[..., None] * means).sum(0) / totals.clamp(min=1)
        server.state["prototypes"] = torch.where(totals > 0, fresh, server.state["prototypes"])
        server.state["known"] |= totals[:, 0] > 0
        return {"extractor": server.average(), "head": self._heads(server)}

    def _targets(self, server: Server) -> Tensor:
        """(K, classes, d) targets of each participant's features."""
        known = server.state["known"][:, None]
        targets = torch.where(known, server.state["prototypes"], server.state["means"])
        return targets.to(server.federation.dtype)

    def _heads(self, server: Server) -> Dense:
        """The combination of heads for each participant."""
        scaled = self._shares(server) * server.state["means"]
        weights = _combination(scaled, server.state["variances"])
        least = weights.amax(1, keepdim=True).clamp(max=LEAST_WEIGHT)
        kept = torch.where(weights < least, 0.0, weights)
        present = server.participants
        return Dense(normalised(kept), rows=present, sources=present)

    def warnings(self, config: Config) -> tuple[str, ...]:
        if config.epochs <= self.head_epochs:
            return (
                f"fedpac: epochs {config.epochs} leaves none for the extractor; it trains for one anyway",
            )
        return ()

    def _aligned(self, client: Client, batch: Batch) -> Tensor:
        features = client.net.features(batch.x)
        distances = (features - client.state["targets"][batch.y]).square().mean(1)
        return batch.cross_entropy(client.net.head(features)) + self.lam * batch.mean(distances)

    def _shares(self, server: Server) -> Tensor:
        """(K, classes, 1) label proportions of the participants."""
        return normalised(server.label_counts[server.participants])[..., None]


def _combination(scaled: Tensor, variances: Tensor) -> Tensor:
    """Row i: the weights a of Eq. 10 for client i, from h (K, classes, d) and v (K,)."""
    flat = scaled.flatten(1)
    gram = flat @ flat.T
    # (h_i - h_j) . (h_i - h_k), indexed i, j, k
    own = gram.diagonal()[:, None, None]
    spreads = own - gram[:, :, None] - gram[:, None, :] + gram
    return on_simplex(spreads + torch.diag(variances))


def on_simplex(forms: Tensor) -> Tensor:
    """For each positive semi-definite Q of ``forms`` (R, K, K), the a on the simplex that minimises a^T Q a.

    It is a multiple of the x >= 0 that minimises x^T Q x + (1 - sum x)^2: non-negative least squares.
    """
    from scipy.optimize import nnls

    if not forms.isfinite().all():  # a diverged simulation: all clients keep their own
        return torch.eye(forms.shape[-1], dtype=forms.dtype, device=forms.device)
    size = forms.diagonal(dim1=1, dim2=2).mean(1).clamp(min=1e-300)
    values, vectors = torch.linalg.eigh(forms / size[:, None, None])
    roots = values.clamp(min=0).sqrt()[..., None] * vectors.mT
    systems = torch.cat([roots, torch.ones_like(roots[:, :1])], 1).numpy(force=True)
    target = [0.0] * forms.shape[-1] + [1.0]
    return normalised(forms.new_tensor(np.stack([nnls(system, target)[0] for system in systems])))
