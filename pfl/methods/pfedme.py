"""pFedMe: personal models around a global one, bound by a Moreau envelope."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pfl.core.hyper import hyper
from pfl.core.lazy import torch
from pfl.engine.method import Method, Moment, Phase, Step
from pfl.engine.mixing import Average, Mixing, normalised
from pfl.engine.transfer import on_device
from pfl.engine.types import Batch, Client, Config, Server, Tensor


@dataclass(frozen=True)
class PFedMe(Method):
    """A participant starts with w_i = theta_i = w^t and takes, on each batch B, K steps of theta_i

        theta_i <- theta_i - eta_p (grad f(theta_i; B) + lambda (theta_i - w_i) + mu theta_i)

    and one step w_i <- w_i - eta lambda (w_i - theta_i), with eta the configuration's learning rate. The
    server sets w^(t+1) = (1 - beta) w^t + beta mean_i w_i. Batch norm's statistics are averaged.

    Source: Dinh et al., NeurIPS 2020, https://arxiv.org/abs/2006.08848, Algorithm 1.
    State: ``server.client_state["theta"][NAME]`` (n, *shape), each client's last theta_i.
    Evaluated: theta_i with the client's own batch-norm statistics ("post_local", the headline); w
        ("post_aggregation").
    Differs from the authors: only the participants train, so theta_i of the others is older (theirs: all
        clients train and the participants are averaged, ``all_train``); R, their number of batches per round,
        follows from the configuration's epochs; the mean is by training samples as in their code, while
        Algorithm 1 has equal weights (``weights``); eta_p 0.03 is our choice.
    """

    family = "personal model"
    headline = "post_local"
    new_client = "The global model, also as theta."

    inner_steps: int = hyper(5, "K: steps of theta on each batch", low=1, search=(1, 10))
    lam: float = hyper(15.0, "lambda: weight of the envelope", low=0.0, search=(0.1, 50.0), log=True)
    personal_lr: float = hyper(0.03, "eta_p: rate of theta", low=0.0, search=(1e-3, 0.2), log=True)
    mu: float = hyper(0.001, "weight decay of theta", low=0.0)
    beta: float = hyper(1.0, "step of the server to the mean", low=0.0, search=(0.5, 4.0))
    weights: str = hyper(
        "size",
        "weights of the participants' w_i: by training samples (authors' code) or equal (paper)",
        choices=("size", "equal"),
    )
    all_train: bool = hyper(
        False, "clients that are not sampled train as well and are not averaged (authors' code)"
    )

    def initialise(self, server: Server) -> None:
        names = server.groups.trainable
        server.client_state["theta"] = {name: server.store[name].clone() for name in names}

    def participants(self, server: Server) -> Tensor:
        return torch.arange(server.clients) if self.all_train else super().participants(server)

    def dispatch(self, server: Server) -> Mixing:
        for name, theta in server.client_state["theta"].items():
            theta[server.participants] = server.store[name][server.participants]
        return {}

    def phases(self, server: Server) -> tuple[Phase, ...]:
        return (Phase(step=self._step),)

    def aggregate(self, server: Server) -> Mixing:
        drawn = on_device(server.sample_clients(), server.federation.device)
        sizes = server.sizes[drawn]
        weights = sizes if self.weights == "size" else torch.ones_like(sizes)
        mean = Average(normalised(weights), sources=drawn)
        step = {
            # All participants received w^t, so it is in the first row.
            name: torch.lerp(server.received[name][:1], server.averaged(name, mean), self.beta)
            for name in server.groups.trainable
        }
        return {"all": mean, **step}

    def personal(self, server: Server, moment: Moment, clients: slice = slice(None)) -> Mapping[str, Tensor]:
        tensors = server.personal(moment, clients)
        if moment == "post_local":
            tensors |= {name: theta[clients] for name, theta in server.client_state["theta"].items()}
        return tensors

    def warnings(self, config: Config) -> tuple[str, ...]:
        lines = []
        if self.lam * config.lr > 1:
            lines.append(f"pfedme: lr * lam = {self.lam * config.lr:g} is above 1, so w overshoots theta")
        inner = self.personal_lr * (self.lam + self.mu)
        if inner >= 2:
            lines.append(f"pfedme: personal_lr * (lam + mu) = {inner:g} is 2 or more: theta diverges")
        if config.momentum or config.weight_decay:
            lines.append("pfedme: momentum and weight_decay are ignored (mu decays theta)")
        return tuple(lines)

    def _step(self, client: Client, batches: tuple[Batch, ...], lr: float | Tensor) -> Step:
        centre = client.weights
        theta = client.state["theta"]
        for _ in range(self.inner_steps):
            slope, loss = client.gradient(self.loss, batches[0], at=theta)
            theta = {
                name: t - self.personal_lr * (slope[name] + self.lam * (t - centre[name]) + self.mu * t)
                for name, t in theta.items()
            }
        moved = {name: w - lr * self.lam * (w - theta[name]) for name, w in centre.items()}
        return Step(moved, loss, {"theta": theta})
