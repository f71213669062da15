"""FedGen: a global model that also learns from generated features of all classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pfl.core.hyper import hyper
from pfl.core.lazy import torch
from pfl.core.rng import generator
from pfl.engine.method import Method, Phase
from pfl.engine.mixing import Dispatch, Mixing, Sent
from pfl.engine.types import Batch, Client, Server, Tensor
from pfl.methods._generator import descend, generate, initial_state
from pfl.methods._prototypes import features

FLOOR = 1e-4
"""Lower bound of the decaying weights of the clients' terms."""


@dataclass(frozen=True)
class FedGen(Method):
    """FedAvg with a generator G of features, which the server trains and the clients learn from.

    G maps a class and noise to a feature. From round t = 2 on a client minimises

        loss(x, y) + B_G/B a_t CE(head(G(y')), y') + b_t KL([softmax head(G(y))] || softmax head(f(x)))

    with y' uniform over the classes of all participants so far, a_t = a_0 rho^(t-1), b_t = b_0
    rho^(t-1), B the configuration's batch size, and no gradient through the brackets. Before averaging, the
    server trains G by Adam on

        mean_y sum_i a_i(y) CE(head_i(G(y)), y) + diversity exp(-mean |e - e'|^2 |z - z'|)

    with y uniform over the qualified classes and a_i(y) the participants' shares of class y. The last mean is
    over all pairs of noises e and features z, whose distances are means over coordinates. A class qualifies
    if the mean or the largest count of its samples over the participants is above 1 (``qualifies``).

    Source: Zhu et al., ICML 2021, https://arxiv.org/abs/2105.10056, Algorithm 1.
    State: ``server.state["generator"][NAME]``, G; ``["adam"]``, its optimiser; ``["available"]`` (classes,),
        1 for the classes seen so far.
    Evaluated: the global model.
    Differs from the authors: classes qualify by the mean, as in FL-bench (theirs: the largest count); counts
        are over all training samples (theirs: the samples drawn in the round); G ends in a ReLU, as the
        features of our networks do; its noise is normal (their code: uniform); training with generated
        features never stops early (theirs: after 20 local epochs); a weight of 0 stays 0, below the floor
        of 1e-4. As in the authors' code, G learns from the participants' heads (FL-bench: from the old
        global head), and clients use its running statistics, which are also sent (FL-bench: the batch's).
    """

    family = "knowledge transfer"

    label_weight: float = hyper(
        10.0, "a_0: weight of generated features", low=0.0, search=(0.1, 30.0), log=True
    )
    latent_weight: float = hyper(
        10.0, "b_0: weight of the divergence from them", low=0.0, search=(0.1, 30.0), log=True
    )
    decay: float = hyper(
        0.98, "rho: factor of both per round", low=0.0, high=1.0, search=(0.95, 1.0), probe=0.02
    )
    diversity: float = hyper(1.0, "weight of the diversity of generated features", low=0.0)
    generated: int = hyper(32, "B_G: generated features per step", low=2)
    qualifies: str = hyper(
        "mean",
        "a class is generated if this count of its samples over the participants is above 1: the mean "
        "(FL-bench) or the largest (authors)",
        choices=("mean", "largest"),
    )
    noise: int = hyper(32, "width of the generator's noise", low=1)
    hidden: int = hyper(32, "width of the generator's hidden layer", low=1, search=(32, 256), log=True)
    generator_steps: int = hyper(5, "K_G: its steps per round", low=0, search=(5, 100), log=True)
    generator_lr: float = hyper(3e-4, "its learning rate", low=0.0, search=(1e-5, 1e-2), log=True)
    generator_decay: float = hyper(0.98, "factor of its learning rate per round", low=0.0, high=1.0)
    generator_weight_decay: float = hyper(1e-2, "its weight decay", low=0.0)

    def initialise(self, server: Server) -> None:
        classes, dtype = server.federation.classes, server.federation.dtype
        stream = generator(server.seed, "generator")
        widths = (classes, self.noise, self.hidden, features(server))
        server.state.update(initial_state(stream, *widths, dtype))
        server.state["available"] = torch.zeros(classes, dtype=dtype)

    def dispatch(self, server: Server) -> Dispatch:
        server.count("available")  # a flag per class: not counted
        net = {name: tensor[None] for name, tensor in server.state["generator"].items()}
        return {"generator": Sent(net), "available": Sent(server.state["available"][None])}

    def phases(self, server: Server) -> tuple[Phase, ...]:
        if server.round == 1:
            return (Phase(),)
        size, decay = server.config.batch_size, self.decay ** (server.round - 1)
        a, b = (max(w * decay, min(w, FLOOR)) for w in (self.label_weight, self.latent_weight))

        def loss(client: Client, batch: Batch) -> Tensor:
            return self._distilled(client, batch, size, a, b)

        return (Phase(loss=loss, noise=self.generated + (self.generated + size) * self.noise),)

    def aggregate(self, server: Server) -> Mixing:
        self._train_generator(server)
        return {"all": server.average()}

    def _train_generator(self, server: Server) -> None:
        counts = server.label_counts[server.participants]
        server.count("class counts", up=counts.numel())
        server.state["available"][counts.sum(0) > 0] = 1
        count = counts.mean(0) if self.qualifies == "mean" else counts.amax(0)
        qualified = (count > 1).nonzero().squeeze(1)
        if not len(qualified):
            return
        stream = generator(server.seed, "generator", server.round)
        rate = self.generator_lr * self.generator_decay ** (server.round - 1)
        for _ in range(self.generator_steps):
            y = qualified[torch.from_numpy(stream.integers(len(qualified), size=self.generated))]
            noise = counts.new_tensor(stream.standard_normal((self.generated, self.noise)))

            def objective(net: Mapping[str, Tensor], y: Tensor = y, noise: Tensor = noise) -> Tensor:
                return self._objective(server, net, y, noise.to(server.federation.dtype))

            descend(server.state, objective, rate, self.generator_weight_decay)

    def _distilled(self, client: Client, batch: Batch, size: int, a: float, b: float) -> Tensor:
        """The client's loss from round 2 on."""
        from torch.nn import functional as F

        assert batch.noise is not None
        tiny = torch.finfo(batch.noise.dtype).eps
        uniform = batch.noise.clamp(tiny, 1 - tiny)
        noise = torch.special.ndtri(uniform[self.generated :]).view(-1, self.noise)
        net, head = client.state["generator"], client.net.head

        y = _drawn(uniform[: self.generated], client.state["available"])
        invented = F.cross_entropy(head(generate(net, y, noise[: self.generated])), y)

        logits = self.logits(client, batch.x)
        latent = generate(net, batch.y, noise[self.generated :][: len(batch.y)])
        target = head(latent).detach().softmax(1)
        divergence = batch.mean(F.kl_div(logits.log_softmax(1), target, reduction="none").sum(1))
        return batch.cross_entropy(logits) + self.generated / size * a * invented + b * divergence

    def _objective(self, server: Server, net: Mapping[str, Tensor], y: Tensor, noise: Tensor) -> Tensor:
        """What the generator minimises on classes ``y`` (B,) and ``noise`` (B, width)."""
        from torch.nn import functional as F

        latent = generate(net, y, noise, training=True)
        heads = {name: server.uploads[name] for name in server.groups["head"]}
        logits = latent @ heads["head.weight"].mT  # (K, B, classes)
        if "head.bias" in heads:
            logits = logits + heads["head.bias"][:, None]
        losses = F.cross_entropy(logits.mT, y.expand(len(logits), -1), reduction="none")
        counts = server.label_counts[server.participants].to(latent.dtype)
        shares = (counts / counts.sum(0))[:, y]
        distances = (noise[:, None] - noise).square().mean(2) * (latent[:, None] - latent).abs().mean(2)
        return (shares * losses).sum(0).mean() + self.diversity * torch.exp(-distances.mean())


def _drawn(uniform: Tensor, available: Tensor) -> Tensor:
    """Map numbers in (0, 1) to classes (B,), uniformly over those ``available`` (classes,)."""
    return (uniform[:, None] >= available.cumsum(0) / available.sum()).sum(1)
