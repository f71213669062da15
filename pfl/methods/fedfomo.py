"""FedFomo: each client weights the models of others by their gain on its validation samples."""

from __future__ import annotations

from dataclasses import dataclass

from pfl.core.hyper import hyper
from pfl.core.lazy import torch
from pfl.core.rng import generator
from pfl.engine.method import Method
from pfl.engine.mixing import Dense, Dispatch, Mixing
from pfl.engine.types import Batch, Client, Server, Tensor


@dataclass(frozen=True)
class FedFomo(Method):
    """Each participant starts from a weighted mean of models that improve its own validation loss.

    Part of each client's training samples is held out for validation, once, before training. The server sends
    a participant i the M models of the previous round with the largest affinity A_ij or, with probability
    epsilon, M random ones. With L_i the validation loss of client i, it starts from

        sum_j w+_ij theta_j,    w_ij = (L_i(b_i) - L_i(theta_j)) / (||theta_j - b_i|| + 1e-5),

    where w+ are the positive w_ij, normalised to sum to 1. If none is positive, it keeps its own last trained
    model theta_i. Then A_ij += w_ij. The baseline b_i is an option:

    - ``trained``: theta_i. It is not a candidate itself, so its weight is 1 if no w_ij is positive, else 0;
    - ``before_training``: the model from which client i started its last local training. If client i took
      part in the previous round, theta_i is one of the candidates and counts towards M.

    Source: Zhang et al., ICLR 2021, https://arxiv.org/abs/2012.08565, Algorithm 1.
    State: ``server.state["affinity"]`` (n, n), initially the identity; ``["uploaded"]`` (n,), the previous
        participants; with ``before_training`` also ``["before"][NAME]`` (n, *shape), every client's b_i.
    Evaluated: each client's last trained model.
    Differs from the authors: the default baseline is FL-bench's; ``before_training`` is PFLlib's rule and the
        authors', who always add the client's own model to M others; A sums the raw w_ij, as in both
        libraries (the authors normalise them); one random draw decides for all M models of a participant
        (the authors draw for each).
    """

    family = "mixing"
    new_client = "The mixture for a participant whose own model is the mean of all models."

    models: int = hyper(
        5, "M: largest number of models sent to a participant", low=0, search=(1, 20), probe=2
    )
    epsilon: float = hyper(
        0.3,
        "probability of random models in the first round",
        low=0.0,
        high=1.0,
        search=(0.0, 0.5),
        probe=0.5,
    )
    decay: float = hyper(0.05, "decrease of epsilon per round", low=0.0, probe=0.1)
    validation: float = hyper(
        0.2, "share of the training samples held out", low=0.01, high=0.99, search=(0.1, 0.3), probe=0.4
    )
    baseline: str = hyper(
        "trained",
        "what a gain is measured against: the client's trained model (FL-bench), or its model before local "
        "training, with the trained one as a candidate (authors, PFLlib)",
        choices=("trained", "before_training"),
    )

    def initialise(self, server: Server) -> None:
        server.hold_out(self.validation)
        server.state["affinity"] = torch.eye(server.clients, dtype=torch.float64)
        server.state["uploaded"] = torch.zeros(server.clients, dtype=torch.bool)
        if self.baseline == "before_training":
            server.state["before"] = {name: server.store[name].clone() for name in server.store.stacks}

    def dispatch(self, server: Server) -> Mixing:
        present, chosen = server.participants, self._choice(server)
        gains = self._gains(server, chosen)
        server.state["affinity"][present] += gains
        server.count("gains", up=int(chosen.sum()))
        own = chosen.gather(1, present[:, None])  # a client already has its own model
        return {"all": Dense(_shares(gains, present), downloads=int(chosen.sum() - own.sum()))}

    def aggregate(self, server: Server) -> Mixing:
        server.state["uploaded"].zero_()[server.participants] = True
        if self.baseline == "before_training":
            for name, start in server.received.items():
                server.state["before"][name][server.participants] = start
        return {}

    def admit(self, server: Server) -> Dispatch:
        if self.baseline == "before_training":
            for name, before in server.state["before"].items():
                before[server.participants] = server.store[name][server.participants]
        return self.dispatch(server)

    def _choice(self, server: Server) -> Tensor:
        """(K, n) bool: the models that each participant receives."""
        present = server.participants
        scores = server.state["affinity"][present]
        stream = generator(server.seed, "fedfomo exploration", server.round)
        shuffled = torch.from_numpy(stream.random(scores.shape)).to(scores)
        explores = torch.from_numpy(stream.random(len(present))).to(scores) < self._exploration(server)
        scores = torch.where(explores[:, None], shuffled, scores)
        candidates: Tensor = server.state["uploaded"].repeat(len(present), 1)
        if self.baseline == "trained":
            candidates.scatter_(1, present[:, None], False)
        best = scores.masked_fill(~candidates, -torch.inf).topk(min(self.models, server.clients)).indices
        return torch.zeros_like(candidates).scatter_(1, best, True) & candidates

    def _exploration(self, server: Server) -> float:
        return max(0.0, self.epsilon - self.decay * (server.round - 1))

    def _gains(self, server: Server, chosen: Tensor) -> Tensor:
        """(K, n): w_ij of the chosen models, 0 for the others."""
        gains = torch.zeros(chosen.shape, dtype=torch.float64, device=chosen.device)
        receiver, sender = chosen.nonzero(as_tuple=True)
        if not len(sender):
            return gains
        present = server.participants
        # The participants' baselines come first: row k is that of participant k.
        models = server.store.rows(torch.cat([present, sender]))
        if self.baseline == "before_training":
            for name, stack in models.items():
                stack[: len(present)] = server.state["before"][name][present]
        judges = torch.cat([present, present[receiver]])
        if server.config.bn_stats == "local":
            models.update({name: server.store.stacks[name][judges] for name in server.groups["bn_stats"]})
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
    """The positive ``gains`` (K, n), normalised by row; a row without any has a single 1, at ``own`` (K,)."""
    positive = gains.clamp(min=0)
    total = positive.sum(1, keepdim=True)
    itself = torch.nn.functional.one_hot(own, gains.shape[1]).to(gains)
    return torch.where(total > 0, positive / torch.where(total > 0, total, 1.0), itself)
