"""PFedCS: similar clients' heads form a teacher for each client's head, under a global extractor."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pfl.analysis.similarity import squared_distances
from pfl.core.hyper import hyper
from pfl.core.lazy import torch
from pfl.core.rng import generator
from pfl.core.rounding import whole_part
from pfl.engine.method import Method, Phase
from pfl.engine.mixing import Dense, Mixing, mixed
from pfl.engine.types import Batch, Client, Federation, Network, Server, Tensor

TOLERANCE = 1e-12
TEACHING = ("select", "similar", "all", "random", "random_fixed")  # the choices that have teachers


@dataclass(frozen=True)
class PFedCS(Method):
    """FedPer whose clients, in the first beta * rounds rounds, also learn from a teacher head.

    Client k's teacher is the mean, over the set A of itself and its collaborators, of their last heads with
    weights

        p_i = lambda (D_max - D_ki) / (|A| (D_max - D_avg)) + (1 - lambda) N_i / N_A.

    The client tunes the teacher on its frozen extractor, then trains its model with ``gamma KL(teacher ||
    model)`` added to the loss. D_ki is the squared distance of the heads' weights, divided by the largest in
    row k; D_max, D_avg and N_A are over A. The collaborators are the members of the nearer of two clusters of
    the row's distances, if their distance is at most ``mean + t / (beta rounds) (min - mean)`` of the row.

    Source: Wu et al., PFedCS, AAAI 2025, 39(20), 21572-21580, Eq. 4-13. There is no public code.
    State: only the personal heads; teachers last for one round.
    Evaluated: the global extractor under the client's own head ("post_aggregation", the headline), as PFLlib
        evaluates at the start of a round and as the paper's baselines here; its own extractor and head after
        local training are "post_local". The paper does not state when it evaluates; one moment for all
        methods keeps a table comparable. Teachers are used in neither.
    Differs from the authors: A includes k in every sum, so that p sums to 1 (as printed, to more); the first
        term is 1 / |A| where D_max = D_avg; fewer than three distinct distances are one cluster; a client
        nearer than a member of the nearer cluster belongs to it; ``select`` "all", "random" and "none" use
        neither clusters nor threshold. The paper gives no value of beta and lambda; 0.5 is our choice.
        Options cover other readings of the paper: ``maximum``, the largest distance of all participants
        instead of each row's; ``unit_rows``, classes' weights of length 1, as the head's "Normalization" may
        mean; ``farthest``, D_max of the row, which leaves the farthest member a share.
    """

    family = "knowledge transfer"

    beta: float = hyper(
        0.5,
        "share of the rounds with teachers; 1 or more means all",
        low=0.0,
        search=(0.05, 2.0),
        log=True,
        probe=0.9,
        when=TEACHING,
    )
    rho: int = hyper(1, "epochs of tuning the teacher", low=0, search=(0, 5), when=TEACHING)
    similarity: float = hyper(
        0.5,
        "lambda: weight of similarity against size in p",
        low=0.0,
        high=1.0,
        search=(0.0, 1.0),
        when=TEACHING,
    )
    distillation: float = hyper(
        1.0,
        "gamma: weight of the divergence from the teacher",
        low=0.0,
        search=(0.1, 10.0),
        log=True,
        when=TEACHING,
    )
    teacher_lr: float = hyper(
        1.0,
        "the teacher's learning rate relative to the model's",
        low=0.0,
        search=(0.1, 10.0),
        log=True,
        when=TEACHING,
    )
    select: str = hyper(
        "similar",
        "collaborators: similar clients, all, 3 random ones (of each round, or fixed), or none (FedPer)",
        choices=("similar", "all", "random", "random_fixed", "none"),
    )
    cluster: str = hyper(
        "GMM",
        "Gaussian mixture, k-means, average linkage, or all within distance 0.5",
        choices=("GMM", "KM", "HIER", "FIX"),
    )
    maximum: str = hyper(
        "row",
        "distances are over the largest of their row, or of all participants' rows",
        choices=("row", "global"),
    )
    unit_rows: bool = hyper(False, "a head's weights of each class have length 1 in the distance")
    farthest: str = hyper(
        "member", "D_max of p: of the members, or of the whole row", choices=("member", "row")
    )

    def client_network(self, network: Network, federation: Federation) -> Network:
        network.add_module("teacher", copy.deepcopy(network.head))
        return network

    def dispatch(self, server: Server) -> Mixing:
        if not self._teaching(server):
            return {}
        server.count("heads", up=len(server.participants) * server.scalars("head"))
        teachers = Dense(self._shares(server))
        return {
            name.replace("head", "teacher", 1): mixed(server.store[name], teachers)
            for name in server.groups["head"]
        }

    def phases(self, server: Server) -> tuple[Phase, ...]:
        if not self._teaching(server):
            return (Phase(trains=("model",)),)
        return (
            Phase(self.rho, trains=("teacher",), lr=self.teacher_lr, loss=self._teacher_loss),
            Phase(trains=("model",), loss=self._taught_loss),
        )

    def aggregate(self, server: Server) -> Mixing:
        return {"extractor": server.average()}

    def _teaching(self, server: Server) -> bool:
        return self.select != "none" and server.round <= whole_part(self.beta, server.rounds)

    def _teacher_loss(self, client: Client, batch: Batch) -> Tensor:
        features = client.net.features(batch.x)
        return batch.cross_entropy(client.net.get_submodule("teacher")(features))

    def _taught_loss(self, client: Client, batch: Batch) -> Tensor:
        features = client.net.features(batch.x)
        logits = client.net.head(features)
        teacher = client.net.get_submodule("teacher")(features).detach().softmax(1)
        divergence = torch.nn.functional.kl_div(logits.log_softmax(1), teacher, reduction="none").sum(1)
        return batch.cross_entropy(logits) + self.distillation * batch.mean(divergence)

    def _shares(self, server: Server) -> Tensor:
        """(K, n): p of each participant's teacher."""
        heads = server.store["head.weight"]
        if self.unit_rows:
            heads = torch.nn.functional.normalize(heads.double(), dim=2)
        distances = squared_distances({"weight": heads[server.participants]}, {"weight": heads})
        largest = distances.max(1, keepdim=True).values if self.maximum == "row" else distances.max()
        distances /= torch.where(largest > 0, largest, 1.0)
        chosen = torch.zeros_like(distances, dtype=torch.bool)
        for row, client, to_all in zip(chosen, server.participants.tolist(), distances.tolist(), strict=True):
            row[self._collaborators(server, client, to_all)] = True
            row[client] = True
        return self._weights(distances, chosen, server.sizes)

    def _weights(self, distances: Tensor, chosen: Tensor, sizes: Tensor) -> Tensor:
        """p (K, n) from the distances D (K, n), the membership of A (K, n) and the sizes N (n,)."""
        members = chosen.sum(1, keepdim=True)
        considered = distances.masked_fill(~chosen, 0) if self.farthest == "member" else distances
        largest = considered.max(1, keepdim=True).values
        spread = largest - (distances * chosen).sum(1, keepdim=True) / members
        near = (largest - distances) / torch.where(spread > TOLERANCE, spread, 1.0)
        near = torch.where(spread > TOLERANCE, near, 1.0) / members
        size = sizes / (sizes * chosen).sum(1, keepdim=True)
        return chosen * (self.similarity * near + (1 - self.similarity) * size)

    def _collaborators(self, server: Server, client: int, distances: Sequence[float]) -> list[int]:
        others = [other for other in range(server.clients) if other != client]
        if self.select == "all" or not others:
            return others
        if self.select in ("random", "random_fixed"):
            round = server.round if self.select == "random" else 0
            stream = generator(server.seed, "pfedcs collaborators", round, client)
            sampled: list[int] = stream.choice(others, size=min(3, len(others)), replace=False).tolist()
            return sampled
        to_others = [distances[other] for other in others]
        mean = sum(to_others) / len(to_others)
        threshold = mean + server.round / (self.beta * server.rounds) * (min(to_others) - mean)
        reach = min(threshold + TOLERANCE, farthest_candidate(to_others, self.cluster))
        return [other for other in others if distances[other] <= reach]


def farthest_candidate(distances: Sequence[float], cluster: str) -> float:
    """The largest distance in the nearer one of two clusters of ``distances``."""
    from sklearn.cluster import AgglomerativeClustering
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    if cluster == "FIX":
        return 0.5
    if len(set(distances)) < 3 or not all(map(math.isfinite, distances)):
        return max(distances)
    points = np.array(distances)[:, None]
    if cluster == "GMM":
        ends = np.array([points.min(0), points.max(0)])
        precisions = np.full((2, 1, 1), 1 / max(points.var(), 1e-6))
        mixture = GaussianMixture(
            2, means_init=ends, weights_init=[0.5, 0.5], precisions_init=precisions, random_state=0
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # its 100 steps are enough
            labels = mixture.fit_predict(points)
        nearer = labels == mixture.means_.argmin()
    elif cluster == "KM":
        ordered = sorted(distances)
        cuts = range(1, len(ordered))
        return ordered[min(cuts, key=lambda cut: _spread(ordered[:cut]) + _spread(ordered[cut:])) - 1]
    else:
        labels = AgglomerativeClustering(linkage="average").fit_predict(points)
        nearer = labels == labels[points.argmin()]
    return float(points[nearer].max(initial=-1.0))


def _spread(values: Sequence[float]) -> float:
    """The sum of squared distances from the mean."""
    return float(np.var(values)) * len(values)
