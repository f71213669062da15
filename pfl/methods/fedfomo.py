"""FedFomo: each client weighs the models of others by what they gain on its validation samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pfl.engine.hyper import hyper
from pfl.engine.method import Method
from pfl.engine.mixing import Dense, Mixing
from pfl.engine.streams import generator
from pfl.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from pfl.engine.client import Batch, Client
    from pfl.engine.server import Server


@dataclass(frozen=True)
class FedFomo(Method):
    """Part of each client's training samples is for validation, fixed before training. A participant i
    receives models j of the M previous participants whose affinity A_ij is largest (or, with probability
    epsilon, of M at random) and, with L_i the loss on its validation samples, starts from

        sum_j w+_ij theta_j,    w_ij = (L_i(theta_i) - L_i(theta_j)) / (||theta_j - theta_i|| + 1e-5),

    where w+ are the positive w, normalised; without any it keeps theta_i, its last trained model. A_ij +=
    w_ij (``server.state["affinity"]``, at first the identity). The model is evaluated as local training
    leaves it.
    """

    paper = "Zhang et al., ICLR 2021, Algorithm 1"

    models: int = hyper(5, "M: most models that a participant receives", low=0, search=(1, 20))
    epsilon: float = hyper(0.3, "share of random choices at first", low=0.0, high=1.0, search=(0.0, 0.5))
    decay: float = hyper(0.05, "by which that share falls every round", low=0.0)
    validation: float = hyper(0.2, "share of the training samples", low=0.01, high=0.99, search=(0.1, 0.3))

    def initialise(self, server: Server) -> None:
        server.hold_out(self.validation)
        server.state["affinity"] = torch.eye(server.clients, dtype=torch.float64)
        server.state["uploaded"] = torch.zeros(server.clients, dtype=torch.bool)
        server.state["sent"] = torch.zeros((), dtype=torch.int64)  # models that were sent in this round

    def dispatch(self, server: Server) -> Mixing:
        chosen = self._choice(server)
        gains = self._gains(server, chosen)
        server.state["sent"] = chosen.sum()
        server.state["affinity"][server.participants] += gains
        return {"all": Dense(_shares(gains, server.participants))}

    def finish(self, server: Server) -> None:
        server.state["uploaded"] = torch.zeros_like(server.state["uploaded"])
        server.state["uploaded"][server.participants] = True

    def traffic(self, server: Server) -> tuple[int, int]:
        sent, model = int(server.state["sent"]), server.scalars("all")
        return sent * model, len(server.participants) * model + sent

    def _choice(self, server: Server) -> Tensor:
        """(K, n) bool: the models that each participant receives."""
        present = server.participants
        scores = server.state["affinity"][present]
        stream = generator(server.seed, "fedfomo exploration", server.round)
        shuffled = torch.from_numpy(stream.random(scores.shape)).to(scores)
        explores = torch.from_numpy(stream.random(len(present))).to(scores) < self._exploration(server)
        scores = torch.where(explores[:, None], shuffled, scores)
        candidates = server.state["uploaded"].repeat(len(present), 1)
        candidates.scatter_(1, present[:, None], False)  # its own model, it has
        best = scores.masked_fill(~candidates, -torch.inf).topk(min(self.models, server.clients)).indices
        return torch.zeros_like(candidates).scatter_(1, best, True) & candidates

    def _exploration(self, server: Server) -> float:
        return max(0.0, self.epsilon - self.decay * (server.round - 1))

    def _gains(self, server: Server, chosen: Tensor) -> Tensor:
        """(K, n): w_ij of the models that were chosen, 0 of the others."""
        gains = torch.zeros(chosen.shape, dtype=torch.float64, device=chosen.device)
        receiver, sender = chosen.nonzero(as_tuple=True)
        if not len(sender):
            return gains
        present = server.participants
        # The participants' own models come first: row k is that of participant k.
        models = server.bank.rows(torch.cat([present, sender]))
        judges = torch.cat([present, present[receiver]])
        if server.config.bn_stats == "local":
            models.update({name: server.bank.stacks[name][judges] for name in server.groups["bn_stats"]})
        samples = [server.held_out[client] for client in judges.tolist()]
        sums = server.collect(self._validation_loss, judges, models, samples)["loss"]
        losses = sums / sums.new_tensor([len(index) for index in samples])
        squares = [
            (models[name][len(present) :] - models[name][receiver]).double().square().flatten(1).sum(1)
            for name in server.groups.trainable
        ]
        distances = torch.stack(squares).sum(0).sqrt()
        gains[receiver, sender] = (losses[receiver] - losses[len(present) :]) / (distances + 1e-5)
        return gains

    def _validation_loss(self, client: Client, batch: Batch) -> dict[str, Tensor]:
        logits = self.logits(client, batch.x)
        return {"loss": batch.sum(torch.nn.functional.cross_entropy(logits, batch.y, reduction="none"))}


def _shares(gains: Tensor, own: Tensor) -> Tensor:
    """The positive ``gains`` (K, n), normalised; a row without any is 1 at the client's own, ``own`` (K,)."""
    positive = gains.clamp(min=0)
    total = positive.sum(1, keepdim=True)
    itself = torch.nn.functional.one_hot(own, gains.shape[1]).to(gains)
    return torch.where(total > 0, positive / torch.where(total > 0, total, 1.0), itself)
