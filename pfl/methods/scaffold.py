"""SCAFFOLD: control variates correct the drift of the clients' local steps."""

from __future__ import annotations

from dataclasses import dataclass

from pfl.core.hyper import hyper
from pfl.core.lazy import torch
from pfl.engine.method import Method, Phase
from pfl.engine.mixing import Dispatch, Mixing, Sent, per_row
from pfl.engine.types import Batch, Client, Config, Server, Tensor


@dataclass(frozen=True)
class Scaffold(Method):
    """A global model; local gradients are corrected by the client's and the server's control variates.

    With the client's variate c_i and the server's c, both initially 0, a local step is

        y <- y - eta (grad loss(y) - c_i + c).

    After K steps from x, a participant sets c_i+ = c_i - c + (x - y) / (K eta), and the server

        x <- x + eta_g mean_i (y_i - x),    c <- c + 1/n sum_i (c_i+ - c_i).

    Source: Karimireddy et al., ICML 2020, https://arxiv.org/abs/1910.06378, Algorithm 1 with option II.
    State: ``server.client_state["variate"][NAME]`` (n, *shape), c_i; ``server.state["variate"][NAME]``
        (1, *shape), c.
    Evaluated: the global model, without fine-tuning.
    Differs from the authors: nothing in the rule; batch norm's statistics are averaged and have no variate.
        If the number of epochs is fixed, K differs between clients, and each uses its own. The authors' code
        was not found. PFLlib also divides by the local steps since January 2024, previously by the batches of
        one epoch. In FL-bench an epoch is one batch, and c_i is never stored, so it is always 0.
    """

    family = "local objective"

    server_lr: float = hyper(1.0, "eta_g: step of the server", low=0.0, search=(0.1, 2.0), log=True)

    def initialise(self, server: Server) -> None:
        zeros = {name: torch.zeros_like(server.store[name]) for name in server.groups.trainable}
        server.client_state["variate"] = zeros
        server.state["variate"] = {name: stack[:1].clone() for name, stack in zeros.items()}

    def dispatch(self, server: Server) -> Dispatch:
        return {"server_variate": Sent(server.state["variate"])}

    def phases(self, server: Server) -> tuple[Phase, ...]:
        return (Phase(gradient=self._corrected),)

    def aggregate(self, server: Server) -> Mixing:
        present, mean = server.participants, server.uniform()
        (phase,) = self.phases(server)
        steps = server.steps(present, phase)
        # A client that took no step has not changed.
        travelled = steps.clamp(min=1) * server.config.lr_in(server.round)
        server.count("variates", up=len(present) * server.scalars(*server.groups.trainable))
        moved = {}
        for name in server.groups.trainable:
            change = server.uploads[name] - server.received[name]
            own, common = server.client_state["variate"][name], server.state["variate"][name]
            update = -common - change / per_row(travelled, change)
            update = torch.where(per_row(steps, change) > 0, update, torch.zeros_like(update))
            own[present] += update
            common += update.sum(0) / server.clients
            moved[name] = server.received[name][:1] + self.server_lr * change.mean(0)
        return {"all": mean, **moved}

    def warnings(self, config: Config) -> tuple[str, ...]:
        if config.momentum or config.weight_decay:
            return ("scaffold: momentum and weight_decay enter the control variates, which assume plain SGD",)
        return ()

    def _corrected(self, client: Client, batches: tuple[Batch, ...]) -> tuple[dict[str, Tensor], Tensor]:
        """The gradient and the value of ``loss + <c - c_i, y>``."""
        gradient, value = client.gradient(self.loss, batches[0])
        common, own = client.state["server_variate"], client.state["variate"]
        correction = {name: common[name] - own[name] for name in gradient}
        linear = [part.flatten() @ client.params[name].flatten() for name, part in correction.items()]
        moved = {name: part + correction[name] for name, part in gradient.items()}
        return moved, value + torch.stack(linear).sum()
