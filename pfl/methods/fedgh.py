"""FedGH: personal extractors under a global header that the server trains on the clients' class means."""

from __future__ import annotations

from dataclasses import dataclass

from pfl.core.hyper import hyper
from pfl.core.lazy import torch
from pfl.core.rng import generator
from pfl.engine.method import Method
from pfl.engine.mixing import Mixing
from pfl.engine.types import Server, Tensor
from pfl.methods._prototypes import class_means, features


@dataclass(frozen=True)
class FedGH(Method):
    """Personal extractors under a global header, which the server trains on the clients' class means.

    Participants replace their head by the header, train their whole model, and send the mean feature of each
    class that they own. The server trains the header on these (mean, class) pairs by cross-entropy, with SGD
    of the configuration's batch size, momentum and weight decay.

    Source: Yi et al., ACM MM 2023, https://arxiv.org/abs/2303.13137, Algorithm 1.
    State: only the personal extractors and the header.
    Evaluated: each client's own extractor and head after local training ("post_local", the headline, as the
        authors do); "post_aggregation" is its extractor under the new header, as in PFLlib.
    Differs from the authors: the header is trained (their script steps another optimiser and never changes
        the header); class means are taken in evaluation mode.
    """

    family = "knowledge transfer"
    headline = "post_local"

    server_lr: float = hyper(
        1.0, "the header's learning rate relative to the clients'", low=0.0, search=(0.01, 10.0), log=True
    )
    passes: int = hyper(1, "passes of the server over the pairs", low=1, search=(1, 10))

    def aggregate(self, server: Server) -> Mixing:
        means, _ = class_means(server, server.trained)
        owned = server.label_counts[server.participants] > 0
        server.count("class means", up=int(owned.sum()) * (features(server) + 1))  # each with its label
        names = server.groups["head"]
        header = [server.received[name][0].clone() for name in names]  # all participants received the same
        self._train(server, header, means[owned].to(header[0].dtype), owned.nonzero()[:, 1])
        return {name: tensor[None] for name, tensor in zip(names, header, strict=True)}

    def _train(self, server: Server, header: list[Tensor], points: Tensor, labels: Tensor) -> None:
        """Move ``header`` (weight and bias) in place, on ``points`` (N, d) of classes ``labels`` (N,)."""
        from pfl.engine.local_training import SGD

        optimiser = SGD(server.config, server.config.lr_in(server.round) * self.server_lr, header)
        stream = generator(server.seed, "header", server.round)
        leaves = [
            tensor.detach().requires_grad_() for tensor in header
        ]  # they share the memory of the header
        for _ in range(self.passes):
            for batch in torch.from_numpy(stream.permutation(len(points))).split(server.config.batch_size):
                logits = torch.nn.functional.linear(points[batch], *leaves)
                loss = torch.nn.functional.cross_entropy(logits, labels[batch])
                optimiser.step(leaves, torch.autograd.grad(loss, leaves))
