"""pFedHN: a hypernetwork on the server generates each client's model from an embedding of the client."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pfl.core.hyper import hyper
from pfl.core.lazy import torch
from pfl.core.rng import generator
from pfl.engine.method import Method, Moment
from pfl.engine.mixing import Dispatch, Mixing
from pfl.engine.types import Server, Tensor


@dataclass(frozen=True)
class PFedHN(Method):
    """Every client's model is h(e_i), with a hypernetwork h and the client's embedding e_i.

    Both are on the server. h is linear to ``width``, then ``hidden`` times ReLU and linear, with a linear
    output for each tensor of the model. A participant trains theta_i = h(e_i) to theta_i'. The server takes
    theta_i - theta_i' as the gradient at the output of h, and makes one step of SGD on h and all embeddings
    along

        mean_i (d h(e_i) / d (h, e))^T (theta_i - theta_i').

    Source: Shamsian et al., ICML 2021, https://arxiv.org/abs/2103.04628, Algorithm 1. Code compared:
        ``AvivSham/pFedHN``.
    State: ``server.state["hypernetwork"][NAME]``, h and the embeddings; ``["velocity"][NAME]``, their
        momentum.
    Evaluated: h(e_i).
    Differs from the authors: several clients per round, whose gradients are averaged (theirs: one); local
        training follows the configuration, without clipping (theirs: 50 steps of rate 0.005 with momentum
        0.9, weight decay 5e-5, batches of 64, gradients clipped to norm 50). Their 5000 rounds correspond to
        500 with ten clients, so the server's learning rate may have to be larger. The output biases start at
        the common initialisation (theirs: torch's default, which does not suit batch norm); batch norm's
        statistics are averaged.
    """

    family = "hypernetwork"
    new_client = "h(e) of the mean embedding e; it then trains this model (the authors train e instead)."

    server_lr: float = hyper(
        0.01, "learning rate of the hypernetwork", low=0.0, search=(1e-3, 1.0), log=True, probe=0.1
    )
    momentum: float = hyper(0.9, "its momentum", low=0.0, high=0.999)
    weight_decay: float = hyper(1e-3, "its weight decay", low=0.0, search=(1e-5, 1e-2), log=True)
    clip: float = hyper(50.0, "largest norm of its gradient", low=1e-6)
    embedding: int = hyper(0, "width of an embedding; 0 means 1 + n // 4 for n clients", low=0)
    width: int = hyper(100, "hidden units of a layer", low=1, search=(25, 200), log=True)
    hidden: int = hyper(3, "hidden layers after the first", low=0, search=(1, 4))

    def initialise(self, server: Server) -> None:
        stream, dtype = generator(server.seed, "hypernetwork"), server.federation.dtype
        inputs = self.embedding or 1 + server.clients // 4
        tensors = {"embedding": torch.from_numpy(stream.standard_normal((server.clients, inputs)))}
        for layer in range(self.hidden + 1):
            bound = 1 / math.sqrt(inputs)
            tensors[f"{layer}.weight"] = torch.from_numpy(stream.uniform(-bound, bound, (self.width, inputs)))
            tensors[f"{layer}.bias"] = torch.from_numpy(stream.uniform(-bound, bound, self.width))
            inputs = self.width
        bound = 1 / math.sqrt(inputs)
        for name in server.groups.trainable:
            first = server.store[name][0].flatten().clone()
            weight = stream.uniform(-bound, bound, (len(first), inputs))
            tensors[f"{name}.weight"], tensors[f"{name}.bias"] = torch.from_numpy(weight), first
        net = {name: tensor.to(dtype) for name, tensor in tensors.items()}
        server.state["hypernetwork"] = net
        server.state["velocity"] = {name: torch.zeros_like(tensor) for name, tensor in net.items()}

    def dispatch(self, server: Server) -> Mixing:
        return self._models(server, server.state["hypernetwork"], server.participants)

    def aggregate(self, server: Server) -> Mixing:
        from torch.optim.sgd import sgd

        net, velocity = server.state["hypernetwork"], server.state["velocity"]
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in net.items()}
        with torch.enable_grad():
            models = self._models(server, leaves, server.participants)
        moved = [(server.received[name] - server.uploads[name]) / len(server.participants) for name in models]
        tensors = list(leaves.values())
        gradients = torch.autograd.grad(list(models.values()), tensors, moved)
        norm = torch.nn.utils.get_total_norm(gradients)
        with torch.no_grad():
            sgd(
                tensors,
                [gradient * self.clip / norm.clamp(min=self.clip) for gradient in gradients],
                list(velocity.values()),
                weight_decay=self.weight_decay,
                momentum=self.momentum,
                lr=self.server_lr,
                dampening=0.0,
                nesterov=False,
                maximize=False,
            )
        return {"bn_stats": server.average()}

    def personal(self, server: Server, moment: Moment, clients: slice = slice(None)) -> Mapping[str, Tensor]:
        tensors = server.personal(moment, clients)
        if moment == "post_aggregation":
            tensors.update(self._models(server, server.state["hypernetwork"], server.client_ids[clients]))
        return tensors

    def admit(self, server: Server) -> Dispatch:
        others = server.others
        for name in ("hypernetwork", "velocity"):
            known = server.state[name]["embedding"][others]
            mean = known.mean(0).expand(len(server.participants), -1)
            server.state[name]["embedding"] = torch.cat([known, mean])
        return self.dispatch(server)

    def _models(self, server: Server, net: Mapping[str, Tensor], clients: Tensor) -> dict[str, Tensor]:
        """h(e_i): name to (K, *shape), for ``clients`` (K,)."""
        linear = torch.nn.functional.linear
        units = linear(net["embedding"][clients], net["0.weight"], net["0.bias"])
        for layer in range(1, self.hidden + 1):
            units = linear(units.relu(), net[f"{layer}.weight"], net[f"{layer}.bias"])
        return {
            name: linear(units, net[f"{name}.weight"], net[f"{name}.bias"]).view(
                -1, *server.store.shape(name)
            )
            for name in server.groups.trainable
        }
