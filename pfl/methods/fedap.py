"""f-FedAP: models mixed by the similarity of the clients' feature statistics; personal batch norm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pfl.analysis.similarity import statistics_distances
from pfl.core.errors import InvalidInput
from pfl.core.hyper import hyper
from pfl.core.lazy import torch
from pfl.core.rounding import whole_part
from pfl.engine.method import Method, Moment
from pfl.engine.mixing import Dense, Dispatch, Identity, Matrix, Mixing, mixed, normalised
from pfl.engine.types import Batch, Client, Server, Tensor

CLOSEST = 1e-14
"""Lower bound of the distances, so that equal clients have finite weights."""


@dataclass(frozen=True)
class FedAP(Method):
    """FedBN for a share rho of the rounds, then models that the server mixes for each client.

    After the warm-up every client runs the common model on its training data, once. It sends the mean and the
    standard deviation, over samples and positions, of every channel of every convolution's output. With

        d_ij = sum_l sqrt(||mean_il - mean_jl||^2 + ||std_il - std_jl||^2),

    W_ij is (1 - mu) (1/d_ij) / sum_k 1/d_ik for j != i, and W_ii = mu. From then on a participant starts from
    row i of W over the stored models, with its own batch norm. What it trains replaces its stored model.

    Source: Lu et al., IEEE Transactions on Big Data 2022, https://arxiv.org/abs/2112.00734, Algorithm 1.
    State: ``server.state["weights"]`` (n, n), W.
    Evaluated: each client's stored model, the last that it trained ("post_local", the headline, as in
        FL-bench and pFedSim's tables). "post_aggregation" is the mixed model, row i of W over the stored
        models, which the authors evaluate. During the warm-up both are FedBN's.
    Differs from the authors: the warm-up is FedBN and not a pre-trained model, as in their f-FedAP; the
        statistics come from the global model with the mean of the clients' batch norms, in evaluation mode;
        the headline, as described above. The traffic of the comparison omits the model sent for it.
    """

    family = "mixing"
    headline = "post_local"
    new_client = (
        "The mixture of the stored models by the similarity of its feature statistics; the mean batch norm."
    )

    rho: float = hyper(0.5, "share of the rounds that are warm-up", low=0.0, high=1.0, search=(0.1, 0.9))
    mu: float = hyper(0.5, "weight of the client's own model", low=0.0, high=1.0, search=(0.1, 0.9))

    def initialise(self, server: Server) -> None:
        if not any(
            isinstance(module, torch.nn.Conv1d | torch.nn.Conv2d) for module in server.program.net.modules()
        ):
            raise InvalidInput(
                "model", server.config.model, "a network with convolutions, whose features are compared"
            )
        server.state["weights"] = torch.eye(server.clients, dtype=torch.float64)

    def dispatch(self, server: Server) -> Mixing:
        if self._personalised_rounds(server) < 1:
            return {}
        if self._personalised_rounds(server) == 1:
            self._compare(server)
        return _all_but_batch_norm(Dense(server.state["weights"][server.participants]))

    def aggregate(self, server: Server) -> Mixing:
        return {} if self._personalised_rounds(server) >= 1 else _all_but_batch_norm(server.average())

    def personal(self, server: Server, moment: Moment, clients: slice = slice(None)) -> Mapping[str, Tensor]:
        if self._personalised_rounds(server) < 1:
            return server.personal(moment, clients)
        stored = server.personal("post_aggregation", clients)
        if moment == "post_local":
            return stored  # for a client that has not trained since the warm-up, the warm-up's model
        mixing = server.groups.resolve(_all_but_batch_norm(Dense(server.state["weights"][clients])), "local")
        return {
            name: mixed(server.store.stacks[name], matrix) if isinstance(matrix, Dense) else stored[name]
            for name, matrix in mixing.items()
        }

    def admit(self, server: Server) -> Dispatch:
        if self._personalised_rounds(server) < 1:
            return {}
        # New clients have no model yet, so that the weight mu of the own one goes to the others.
        replace(self, mu=0.0)._compare(server)
        weights = server.state["weights"][server.participants]
        weights[:, server.participants] = 0
        return _all_but_batch_norm(Dense(normalised(weights)))

    def warm_up(self, rounds: int) -> int:
        return whole_part(self.rho, rounds)

    def _personalised_rounds(self, server: Server) -> int:
        """Rounds since the warm-up, including the current one."""
        return server.round - self.warm_up(server.rounds)

    def _compare(self, server: Server) -> None:
        """Collect the clients' statistics and compute W."""
        common = {name: server.store[name].mean(0, keepdim=True) for name in server.store.stacks}
        models = {name: stack.expand(server.clients, *stack.shape[1:]) for name, stack in common.items()}
        sums = server.collect(_moments, server.client_ids, models)
        samples = server.sizes[:, None]
        means = [sums[name] / samples for name in sums if name.startswith("mean")]
        squares = [sums[name] / samples for name in sums if name.startswith("square")]
        variances = [q - m.square() for m, q in zip(means, squares, strict=True)]
        server.state["weights"] = self._weights(means, variances)
        server.count("statistics", up=sum(2 * mean.numel() for mean in means))

    def _weights(self, means: list[Tensor], variances: list[Tensor]) -> Tensor:
        """W (n, n) from the layers' statistics, (n, channels) each."""
        distances = statistics_distances(means, variances)
        closeness = (1 / distances.clamp(min=CLOSEST)).fill_diagonal_(0)
        total = closeness.sum(1, keepdim=True)
        weights = (1 - self.mu) * closeness / torch.where(total > 0, total, 1.0)
        return weights + torch.diag(1 - weights.sum(1))


def _all_but_batch_norm(matrix: Matrix) -> Mixing:
    return {"all": matrix, "bn_affine": Identity(), "bn_stats": Identity()}


def _moments(client: Client, batch: Batch) -> dict[str, Tensor]:
    """For every convolution, sums over the samples of its output's mean and mean square over positions."""
    sums: dict[str, Tensor] = {}

    def record(_module: object, _inputs: object, output: Tensor) -> None:
        layer, values = len(sums), output.flatten(2).double()
        sums[f"mean {layer}"] = batch.sum(values.mean(2))
        sums[f"square {layer}"] = batch.sum(values.square().mean(2))

    convolutions = (
        module for module in client.net.modules() if isinstance(module, torch.nn.Conv1d | torch.nn.Conv2d)
    )
    hooks = [module.register_forward_hook(record) for module in convolutions]
    client.net(batch.x)
    for hook in hooks:
        hook.remove()
    return sums
