"""FedAMP: personal models, each pulled towards a mixture of similar models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pfl.analysis.similarity import cosines, squared_distances
from pfl.core.hyper import hyper
from pfl.core.lazy import torch
from pfl.engine.method import Method, Phase
from pfl.engine.mixing import Dense, Dispatch, Sent, check_rows, mixed
from pfl.engine.types import Batch, Client, Server, Tensor


@dataclass(frozen=True)
class FedAMP(Method):
    """Each participant trains its own model w_i, pulled towards u_i, a mixture of the models similar to it.

    The local objective is ``loss + mu/2 ||w - u_i||^2``, with u_i = sum_j xi_ij w_j over the stored models of
    all clients. With d_ij = ||w_i - w_j||^2 over the parameters, for j != i,

        raw:         xi_ij = alpha / sigma exp(-d_ij / sigma),
        scale_free:  the same with sigma = scale * median d and alpha = kappa sigma / (n - 1),
        heur:        xi_ij = (1 - xi_ii) softmax_j(sigma cos(w_i, w_j)) with a fixed xi_ii (HeurFedAMP),

    and xi_ii is 1 minus the sum of the others.

    Source: Huang et al., AAAI 2021, https://arxiv.org/abs/2007.03797, Algorithm 1.
    State: only the stored models.
    Evaluated: each client's own model w_i, after local training.
    Differs from the authors: ``scale_free`` is our parametrisation, since their sigma fits one network only;
        mu stands for their lambda / alpha; training starts from w_i; alpha / sigma is at most 1 / (n - 1),
        above which xi_ii could be negative; the median is over the participants' positive distances, since
        clients that never took part have equal models. Batch norm's running statistics stay personal.
    """

    family = "mixing"
    new_client = "The mean of the models, and its mixture u of them."

    form: str = hyper(
        "scale_free", "our parametrisation, the paper's, or HeurFedAMP", choices=("scale_free", "raw", "heur")
    )
    mu: float = hyper(0.1, "weight of the proximal term", low=0.0, search=(1e-4, 1.0), log=True)
    kappa: float = hyper(
        1.0,
        "scale_free: largest weight of the others",
        low=0.0,
        high=1.0,
        search=(0.1, 1.0),
        when=("form", "scale_free"),
    )
    scale: float = hyper(
        1.0,
        "scale_free: sigma relative to the median",
        low=1e-3,
        search=(0.1, 10.0),
        log=True,
        when=("form", "scale_free"),
    )
    alpha: float = hyper(1.0, "raw: alpha_k", low=0.0)
    sigma: float = hyper(1.0, "raw, heur: sigma", low=1e-12)
    self_weight: float = hyper(0.1, "heur: xi_ii", low=0.0, high=1.0)

    def dispatch(self, server: Server) -> Dispatch:
        names, present = server.groups.trainable, server.participants
        server.count("models", up=len(present) * server.scalars(*names))
        return self._clouds({name: server.store[name] for name in names}, present)

    def admit(self, server: Server) -> Dispatch:
        # New clients come last and start alike: the first stands for all of them.
        count = server.clients - len(server.participants) + 1
        models = {name: server.store[name][:count] for name in server.groups.trainable}
        return self._clouds(models, server.participants[:1])

    def _clouds(self, models: Mapping[str, Tensor], own: Tensor) -> Dispatch:
        """u (K, *shape) of the rows ``own`` (K,) of ``models`` (n, *shape)."""
        clouds = Dense(self._attention({name: stack[own] for name, stack in models.items()}, models, own))
        check_rows(clouds)
        return {"cloud": Sent({name: mixed(stack, clouds) for name, stack in models.items()})}

    def phases(self, server: Server) -> tuple[Phase, ...]:
        return (Phase(gradient=self._proximal),)

    def _proximal(self, client: Client, batches: tuple[Batch, ...]) -> tuple[dict[str, Tensor], Tensor]:
        return client.pulled(*client.gradient(self.loss, batches[0]), self.mu, client.state["cloud"])

    def _attention(self, mine: Mapping[str, Tensor], models: Mapping[str, Tensor], own: Tensor) -> Tensor:
        """xi (K, n) of the models ``mine`` (K, *shape): the rows ``own`` (K,) of ``models`` (n, *shape)."""
        clients = len(next(iter(models.values())))
        itself = torch.nn.functional.one_hot(own, clients).bool()
        if self.form == "heur":
            likeness = (self.sigma * cosines(mine, models)).masked_fill(itself, -torch.inf)
            weights = (1 - self.self_weight) * likeness.softmax(1).nan_to_num(
                0
            )  # a single client has no others
        else:
            distances = squared_distances(mine, models)
            share, sigma = self.alpha / self.sigma, torch.as_tensor(self.sigma)
            if self.form == "scale_free":
                share, sigma = (
                    self.kappa / max(clients - 1, 1),
                    self.scale * _median(distances[distances > 0]),
                )
            share = min(share, 1 / max(clients - 1, 1))
            weights = (share * torch.exp(-distances / sigma)).masked_fill(itself, 0)
        rest = (1 - weights.sum(1, keepdim=True)).clamp(min=0)
        return torch.where(itself, rest, weights)


def _median(values: Tensor) -> Tensor:
    """The median; 1 if there are no values."""
    return values.median() if len(values) else values.new_ones(())
