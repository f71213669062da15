"""FedAS: extractors are aligned with each client's own features, and averaged by Fisher information."""

from __future__ import annotations

from dataclasses import dataclass

from pfl.core.hyper import hyper
from pfl.core.lazy import torch
from pfl.engine.method import Method, Phase, Step
from pfl.engine.mixing import Average, Dispatch, Mixing, Sent, normalised
from pfl.engine.types import Batch, Client, Server, Tensor
from pfl.methods._prototypes import class_means

SMALLEST = 1e-30
"""Replaces a Fisher trace of 0, so that the weights of the average are defined."""


@dataclass(frozen=True)
class FedAS(Method):
    """A global extractor under personal heads, aligned before training and averaged by Fisher information.

    A participant first moves the received extractor f by one epoch of SGD on

        sum over the classes y of a batch: mean over their samples of (f(x) - c_y)^2,

    where c_y is the class's mean feature under the extractor that the client trained last. Then all layers
    train. For the trained model the client computes F_i, the sum over batches of ||grad loss||^2 in
    evaluation mode. The server averages the extractors with the weights F_i / sum_j F_j.

    Source: Yang et al., FedAS: Bridging Inconsistency in Personalized Federated Learning, CVPR 2024. Code
        compared: ``xiyuanyang45/FedAS``.
    State: ``server.client_state["fisher"]`` (n,), F_i of each client's last local training. The class means
        c_y are computed by the client and are not sent.
    Evaluated: each client's last trained model ("post_local", the headline), as in the authors' code.
    Differs from the authors: the alignment uses the configuration's learning rate times ``align_lr``, so that
        a search scales both (theirs: always 0.01, which is ``align_lr`` 0.01 / lr); by the sum over classes,
        a class with one sample weighs as much as a large one, as in theirs; the batches of F_i are drawn in
        random order; class means are taken in evaluation mode (theirs: in the mode in which the model was
        left), the alignment in training mode (theirs: in evaluation mode); each client aligns the extractor
        as received (their clients align one shared object in turn).
    """

    family = "personal layers"
    headline = "post_local"

    align_lr: float = hyper(
        1.0,
        "learning rate of the alignment relative to the configuration's (authors: 0.01 / lr)",
        low=0.0,
        search=(0.1, 10.0),
        log=True,
    )
    align_batch_size: int = hyper(16, "batch size of the alignment", low=2, probe=2)

    def initialise(self, server: Server) -> None:
        server.client_state["fisher"] = torch.zeros(server.clients, dtype=server.federation.dtype)

    def dispatch(self, server: Server) -> Dispatch:
        present = server.participants
        server.client_state["fisher"][present] = 0
        means, _ = class_means(server, server.personal("post_local", present))
        server.count("anchors")  # computed by the client itself: no traffic
        return {"anchors": Sent(means.to(server.federation.dtype))}

    def phases(self, server: Server) -> tuple[Phase, ...]:
        align = Phase(
            1, batch_size=self.align_batch_size, trains=("extractor",), lr=self.align_lr, loss=self._align
        )
        return (align, Phase(), Phase(1, trains=(), step=self._fisher))

    def aggregate(self, server: Server) -> Mixing:
        fisher = server.client_state["fisher"][server.participants].double()
        server.count("fisher", up=len(fisher))
        return {"extractor": Average(normalised(fisher.clamp(min=SMALLEST)))}

    def _align(self, client: Client, batch: Batch) -> Tensor:
        features, anchors = client.net.features(batch.x), client.state["anchors"]
        squares = (features - anchors[batch.y]).square().mean(1)
        members = (batch.y[:, None] == torch.arange(len(anchors), device=batch.y.device)).to(squares)
        sums, counts = batch.sum(members * squares[:, None]), batch.sum(members)
        return (sums / counts.clamp(min=1)).sum()

    def _fisher(self, client: Client, batches: tuple[Batch, ...], lr: float | Tensor) -> Step:
        model = {name: client.params[name] for name, _ in client.net.named_parameters()}
        gradient, loss = client.gradient(self.loss, batches[0], at=model)
        trace = torch.stack([part.square().sum() for part in gradient.values()]).sum()
        return Step({}, loss, {"fisher": client.state["fisher"] + trace})
