"""FedCP: a policy splits every sample's features between a personal head and the global one."""

from __future__ import annotations

import copy
from dataclasses import dataclass

from pfl.core.hyper import hyper
from pfl.core.lazy import torch
from pfl.engine.method import Method, Phase
from pfl.engine.mixing import Matrix, Mixing
from pfl.engine.types import Batch, Client, Federation, Network, Server, Tensor
from pfl.methods._prototypes import features as width_of

WIDTHS = (20.0, 30.0, 40.0, 100.0)
"""Widths of the discrepancy's Gaussian kernels: twice the bandwidths in the authors' code."""


@dataclass(frozen=True)
class FedCP(Method):
    """A global extractor under two heads, whose inputs a policy network separates.

    Let f (d,) be the features of a sample, and v the personal head's weights as received, summed over
    classes. The policy network (linear to 2 d, layer norm, ReLU) maps f * v / ||v|| to two scores a, b (d,).
    The logits are

        head(s f) + shared_head((1 - s) f),    s = exp(a) / (exp(a) + exp(b)).

    In training Gumbel noise is added to the scores. Extractor, policy and personal head minimise

        CE(logits, y) + lambda MMD(f, f'),

    where f' are the features of the received extractor and MMD is the squared maximum mean discrepancy. The
    server averages extractors and policies. The new shared head is the mean of the old one and of the
    averaged personal heads.

    Source: Zhang et al., KDD 2023, https://arxiv.org/abs/2307.01217, Algorithm 1. Code compared:
        ``TsingZ0/FedCP``, and ``TsingZ0/PFLlib`` by the same authors.
    State: only the personal heads; the shared head is a part of the network that is not trained.
    Evaluated: the global extractor, policy and shared head with the client's own head, without noise.
    Differs from the authors: their code draws Gumbel noise in evaluation, too; the received extractor is in
        evaluation mode; all participants receive policy and shared head at the beginning of a round (theirs:
        last round's participants, at its end); before a client's first round v comes from the initial head
        (theirs: random). v is as in the paper, in their repository since February 2023 (before: the summed
        absolute difference between the head that the client uploaded and the shared one) and in PFLlib.
        lambda is 5 in their script for MNIST, and tuned.
    """

    family = "personal layers"

    lam: float = hyper(
        5.0, "lambda: weight of the distance to the received features", low=0.0, search=(0.1, 10.0), log=True
    )

    def client_network(self, network: Network, federation: Federation) -> Network:
        width = network.head.in_features
        policy = torch.nn.Sequential(
            torch.nn.Linear(width, 2 * width), torch.nn.LayerNorm(2 * width), torch.nn.ReLU()
        )
        network.add_module("policy", policy)
        network.add_module("shared_head", copy.deepcopy(network.head))
        return network

    def phases(self, server: Server) -> tuple[Phase, ...]:
        noise = server.config.batch_size * 2 * width_of(server)
        return (Phase(trains=("model", "policy"), noise=noise),)

    def loss(self, client: Client, batch: Batch) -> Tensor:
        assert batch.noise is not None
        with client.other(client.start) as net:
            received = net.features(batch.x)
        features = client.net.features(batch.x)
        tiny = torch.finfo(batch.noise.dtype).eps
        gumbel = -(-batch.noise.clamp(tiny, 1 - tiny).log()).log()
        gumbel = gumbel.view(-1, 2, features.shape[1])[: len(features)]
        entropy = batch.cross_entropy(_logits(client, features, gumbel))
        return entropy + self.lam * _discrepancy(batch, features, received)

    def logits(self, client: Client, x: Tensor) -> Tensor:
        return _logits(client, client.net.features(x))

    def aggregate(self, server: Server) -> Mixing:
        average = server.average()
        mixing: dict[str, Matrix | Tensor] = dict.fromkeys(("extractor", "policy"), average)
        for name in server.groups["head"]:
            shared = server.store[f"shared_{name}"][:1]
            own = torch.tensordot(average.weights.to(shared.dtype), server.uploads[name], 1)
            mixing[f"shared_{name}"] = (own + shared) / 2
        return mixing


def _logits(client: Client, features: Tensor, noise: Tensor | float = 0.0) -> Tensor:
    """Logits (B, classes) of features (B, d), with noise (B, 2, d) on the policy's scores."""
    vector = client.start["head.weight"].sum(0)
    context = features * torch.nn.functional.normalize(vector, dim=0)
    scores = client.net.get_submodule("policy")(context).view(-1, 2, features.shape[1])
    own, common = (features[:, None] * (scores + noise).softmax(1)).unbind(1)
    logits: Tensor = client.net.head(own) + client.net.get_submodule("shared_head")(common)
    return logits


def _discrepancy(batch: Batch, first: Tensor, second: Tensor) -> Tensor:
    """Squared maximum mean discrepancy of features (B, d) and (B, d), for the sum of the Gaussian kernels
    exp(-||a - b||^2 / width) of all `WIDTHS`.
    """

    def mean(x: Tensor, y: Tensor) -> Tensor:
        squares = x.square().sum(1)[:, None] + y.square().sum(1) - 2 * x @ y.T
        kernels = torch.stack([torch.exp(-squares / width) for width in WIDTHS]).sum(0)
        return batch.sum(batch.sum(kernels)) / batch.sum(torch.ones_like(x[:, 0])) ** 2

    return mean(first, first) + mean(second, second) - 2 * mean(first, second)
