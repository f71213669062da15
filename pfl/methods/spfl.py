"""SPFL: each client's own mixture of all clients' updates, by gradient similarity per stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pfl.analysis.similarity import cosines
from pfl.core.errors import InvalidInput
from pfl.core.hyper import hyper
from pfl.core.lazy import torch
from pfl.engine.method import Method, Phase
from pfl.engine.mixing import DeltaMix, Dense, Dispatch, Identity, Matrix, Mixing, normalised
from pfl.engine.types import Server, Tensor
from pfl.methods._stages import stages

LAYER_SHARES = {3: [0.5, 0.3, 0.2], 4: [0.4, 0.2, 0.2, 0.2]}
"""Weights of the layers' cosines in the authors' code: conv1, conv2, fc1 and, if 4, the head fc2."""


@dataclass(frozen=True)
class SPFL(Method):
    """Every client receives its own mixture of all updates, stage by stage, by gradient similarity.

    A participant trains w_i to w'_i with two SGD steps on each batch. Then every stage q of its model becomes

        w_i + alpha sum_j W_ij (w'_j - w_j)   or, as SPFL-w,   sum_j W_ij w'_j,    W_ij ~ |D_j| S_q(i, j),

    with rows of W that sum to 1 over the participants. Before the first round and after every ``refresh``
    rounds all models are replaced by their mean, and every client trains a copy of it. S_q is the row-wise
    softmax of the cosines between the changes of the copies, which are then discarded.

    ``similarity`` "layers" is what the authors' code compares: a weighted mean of the cosines of the stage's
    layers, without biases, with weights 0.5, 0.3, 0.2 for three layers and 0.4, 0.2, 0.2, 0.2 for four (equal
    for other numbers, our choice). The SPFL-w of that code is this option with ``mix`` "weights", ``stages``
    "whole" and ``head_stage`` "average"; the smoothing between refreshes is omitted, because that code does
    not define its constant.

    Source: SPFL, anonymous submission to ICLR 2022, Algorithm 1 and Eq. 2-7.
    State: ``server.state["similarity"]`` (Q, n, n), S of each stage.
    Evaluated: each client's model after aggregation; with ``finetune_steps`` also "adapted", after
        fine-tuning a copy.
    Differs from the authors: rows are normalised and alpha is 1, since Eq. 7 as printed (``literal`` with
        alpha 0.01) hardly moves the models; the refresh comes before the next round, so that no evaluation
        sees the mean; the head is mixed as in the paper (their code: local between refreshes,
        ``head_stage``); absent clients keep their models; batch norm's statistics stay local.
    """

    family = "mixing"
    new_client = "The mixture of the models, stage by stage, by the similarity of changes as at a refresh."

    mix: str = hyper(
        "deltas", "what is mixed: SPFL's deltas or SPFL-w's weights", choices=("deltas", "weights")
    )
    repeat: int = hyper(2, "SGD steps on each batch", low=1)
    refresh: int = hyper(10, "Gamma: rounds between refreshes", low=1, search=(1, 50), log=True, probe=2)
    alpha: float = hyper(
        1.0,
        "server step on deltas",
        low=0.0,
        search=(0.1, 2.0),
        when=("mix", "deltas"),
    )
    temperature: float = hyper(
        1.0, "the cosines are divided by it before the softmax", low=1e-12, search=(0.05, 5.0), log=True
    )
    stages: str = hyper(
        "network",
        "the network's stages (extractor, head), one in all, or every layer",
        choices=("network", "whole", "layer"),
    )
    head_stage: str = hyper(
        "mixed",
        "the head is mixed (paper), local between refreshes, or averaged (authors' code of SPFL and SPFL-w)",
        choices=("mixed", "local", "average"),
    )
    similarity: str = hyper(
        "stage",
        "the cosine of a stage's changes (paper), or a weighted mean of its layers' (authors' code)",
        choices=("stage", "layers"),
    )
    literal: bool = hyper(False, "Eq. 7 as printed: weights |D_j| / |D| S(i, j), which sum to about 1 / n")
    finetune_steps: int = hyper(0, 'SGD steps before the evaluation "adapted"', low=0, adaptation=True)
    finetune_lr: float = hyper(
        1.0, "their learning rate relative to the configuration's", low=0.0, adaptation=True
    )
    finetune_batch_size: int = hyper(
        0, "their batch size; 0 means the configuration's", low=0, adaptation=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.literal and self.mix == "weights":
            raise InvalidInput("literal", True, "false with mix=weights, as the weights would shrink to 0")

    def initialise(self, server: Server) -> None:
        parts = len(stages(server.groups, self.stages))
        server.state["similarity"] = torch.zeros(parts, server.clients, server.clients, dtype=torch.float64)

    def dispatch(self, server: Server) -> Mixing:
        if (server.round - 1) % self.refresh == 0:
            self._refresh(server)
        return {}

    def _refresh(self, server: Server) -> None:
        """Replace all models by their mean, and compare how each client's training changes it."""
        for name in server.groups.trainable:
            models = server.store[name]
            server.store.share(name, models[0] if server.store.shared(name) else models.mean(0))
        model = server.clients * server.scalars(*server.groups.trainable)
        server.count("refresh", down=model, up=model)
        self._compare(server, server.store.rows(server.client_ids))

    def _compare(self, server: Server, start: Mapping[str, Tensor]) -> None:
        """Compute S from trained copies of the common model ``start``, name to (n, *shape)."""
        copies = server.train("refresh", server.client_ids, start, self.phases(server)).tensors
        for q, names in enumerate(stages(server.groups, self.stages)):
            changes = {name: start[name] - copies[name] for name in names}
            alike = self._alike(changes).fill_diagonal_(1.0)
            server.state["similarity"][q] = (alike / self.temperature).softmax(1)

    def phases(self, server: Server) -> tuple[Phase, ...]:
        return (Phase(repeat=self.repeat),)

    def admit(self, server: Server) -> Dispatch:
        present = server.participants
        start = server.store.rows(server.client_ids)
        for name in server.groups.trainable:
            start[name] = start[name][present[:1]].expand_as(start[name])  # the mean of all models
        self._compare(server, start)
        mixing: dict[str, Matrix] = {}
        for similarity, names in zip(
            server.state["similarity"], stages(server.groups, self.stages), strict=True
        ):
            weights = similarity[present] * server.sizes
            weights[:, present] = 0  # new clients have no model yet
            mixing.update(dict.fromkeys(names, Dense(normalised(weights))))
        if self.head_stage != "mixed":
            mixing["head"] = Identity()
        return mixing

    def aggregate(self, server: Server) -> Mixing:
        mixing: dict[str, Matrix] = {}
        for similarity, names in zip(
            server.state["similarity"], stages(server.groups, self.stages), strict=True
        ):
            mixing.update(dict.fromkeys(names, self._matrix(server, similarity)))
        if self.head_stage == "local":
            mixing["head"] = Identity()
        if self.head_stage == "average":
            mixing["head"] = self._matrix(server, torch.ones_like(server.state["similarity"][0]))
        return mixing

    def adaptation(self, server: Server) -> tuple[Phase, ...]:
        if not self.finetune_steps:
            return ()
        batch_size = self.finetune_batch_size or None
        return (Phase(steps=self.finetune_steps, batch_size=batch_size, lr=self.finetune_lr),)

    def _alike(self, changes: dict[str, Tensor]) -> Tensor:
        """(n, n) similarities of the clients' changes (n, *shape) in one stage."""
        layers = [name for name, stack in changes.items() if stack.dim() > 2]  # no bias, no batch norm
        if self.similarity == "stage" or not layers:
            return cosines(changes, changes)
        shares = LAYER_SHARES.get(len(layers), [1 / len(layers)] * len(layers))
        parts = [
            share * cosines({name: changes[name]}, {name: changes[name]})
            for share, name in zip(shares, layers, strict=True)
        ]
        return torch.stack(parts).sum(0)

    def _matrix(self, server: Server, similarity: Tensor) -> Matrix:
        """W of one stage, from its S (n, n)."""
        present = server.participants
        weights = similarity[present][:, present] * server.sizes[present]
        matrix = normalised(weights)
        if self.mix == "weights":
            return Dense(matrix, rows=present, sources=present)
        step = torch.full_like(matrix[:, 0], self.alpha)
        if self.literal:
            step = step * weights.sum(1) / server.sizes[present].sum()
        return DeltaMix(matrix, step)
