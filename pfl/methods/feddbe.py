"""FedDBE: a personal translation of the features, whose mean is kept close to that of all clients."""

from __future__ import annotations

from dataclasses import dataclass

from pfl.core.hyper import hyper
from pfl.core.lazy import torch
from pfl.engine.method import Method, Phase, Step
from pfl.engine.mixing import Dispatch, Mixing, Sent
from pfl.engine.types import Batch, Client, Config, Federation, Loss, Network, Server, Tensor


@dataclass(frozen=True)
class FedDBE(Method):
    """FedAvg with a personal translation z_i between the extractor f and the head h.

    With z the mean feature of all clients, a client minimises on each batch

        CE(h(f(x) + z_i), y) + kappa/2 mean((r - z)^2),    r = (1 - m) [r] + m mean_b f(x_b),

    where r is 0 at the beginning of each local training and no gradient passes through the bracket. Before
    the first round every client trains once without z_i and kappa; z is the mean of their r at the end,
    weighted by training samples, and the trained models are discarded.

    Source: Zhang et al., NeurIPS 2023, https://arxiv.org/abs/2311.14975, Algorithm 1. Code compared:
        ``TsingZ0/DBE``.
    State: ``server.client_state["running"]`` (n, d), r; ``server.state["mean"]`` (1, d), z; z_i is personal.
    Evaluated: the global model with the client's own z_i.
    Differs from the authors: nothing in the rule; local steps are plain SGD, which is all that they use.
        kappa (their ``klw``) and m (``mo``) are tuned per network: 50 and 1 in their script for
        Fashion-MNIST with a CNN; 0 and 0.1 are their code's placeholders. kappa = 1 is our choice.
    """

    family = "personal layers"
    new_client = "The global model, the mean translation and the mean feature."

    kappa: float = hyper(
        1.0, "weight of the distance to the mean feature", low=0.0, search=(0.01, 100.0), log=True
    )
    m: float = hyper(0.1, "weight of a batch in the running mean", low=0.0, high=1.0, search=(0.05, 1.0))

    def client_network(self, network: Network, federation: Federation) -> Network:
        translation = torch.nn.Module()
        zeros = torch.zeros(network.head.in_features)
        translation.register_parameter("bias", torch.nn.Parameter(zeros))
        network.add_module("translation", translation)
        return network

    def initialise(self, server: Server) -> None:
        width = server.store.shape("translation.bias")[0]
        dtype = server.federation.dtype
        server.client_state["running"] = torch.zeros(server.clients, width, dtype=dtype)
        server.state["mean"] = torch.zeros(1, width, dtype=dtype)

    def dispatch(self, server: Server) -> Dispatch:
        if server.round == 1:
            server.state["mean"] = self._mean_feature(server)
        return self.admit(server)

    def admit(self, server: Server) -> Dispatch:
        server.client_state["running"][server.participants] = 0
        return {"mean": Sent(server.state["mean"])}

    def phases(self, server: Server) -> tuple[Phase, ...]:
        return (Phase(step=self._step),)

    def loss(self, client: Client, batch: Batch) -> Tensor:
        features = client.net.features(batch.x)
        running = self._running(client, batch, features)
        distance: Tensor = (running - client.state["mean"]).square().mean()
        logits = client.net.head(features + client.params["translation.bias"])
        return batch.cross_entropy(logits) + self.kappa / 2 * distance

    def logits(self, client: Client, x: Tensor) -> Tensor:
        logits: Tensor = client.net.head(client.net.features(x) + client.params["translation.bias"])
        return logits

    def aggregate(self, server: Server) -> Mixing:
        return {"model": server.average()}

    def warnings(self, config: Config) -> tuple[str, ...]:
        if config.momentum or config.weight_decay:
            return ("feddbe: momentum and weight_decay are ignored",)
        return ()

    def _running(self, client: Client, batch: Batch, features: Tensor) -> Tensor:
        """r (d,) after a batch with these features (B, d)."""
        mean = batch.sum(features) / batch.sum(torch.ones_like(features[:, 0]))
        running: Tensor = client.state["running"]
        return (1 - self.m) * running + self.m * mean

    def _step(self, client: Client, batches: tuple[Batch, ...], lr: float | Tensor) -> Step:
        return self._moved(client, batches, lr, self.loss)

    def _first_step(self, client: Client, batches: tuple[Batch, ...], lr: float | Tensor) -> Step:
        """A step before the first round, without the translation and the mean feature."""
        return self._moved(client, batches, lr, _cross_entropy)

    def _moved(self, client: Client, batches: tuple[Batch, ...], lr: float | Tensor, objective: Loss) -> Step:
        (batch,) = batches
        gradient, loss = client.gradient(objective, batch)
        with client.statistics_kept():
            running = self._running(client, batch, client.net.features(batch.x))
        moved = {name: weight - lr * gradient[name] for name, weight in client.weights.items()}
        return Step(moved, loss, {"running": running})

    def _mean_feature(self, server: Server) -> Tensor:
        """z (1, d), from one training of all clients."""
        all_clients = server.client_ids
        models = server.store.rows(all_clients)
        phases = (Phase(trains=("model",), step=self._first_step),)
        running: Tensor = server.train("mean feature", all_clients, models, phases).state["running"]
        server.count("mean feature", down=len(all_clients) * server.scalars("model"), up=running.numel())
        mean = (server.sizes @ running.double()) / server.sizes.sum()
        return mean[None].to(server.federation.dtype)


def _cross_entropy(client: Client, batch: Batch) -> Tensor:
    """The loss without the translation."""
    return batch.cross_entropy(client.net(batch.x))
