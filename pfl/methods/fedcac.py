"""FedCAC: critical parameters are averaged among clients that share them, all others among all clients."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pfl.analysis.sensitivity import sensitivity
from pfl.core.hyper import hyper
from pfl.core.lazy import torch
from pfl.core.rng import generator
from pfl.core.rounding import whole_part
from pfl.engine.method import Method
from pfl.engine.mixing import Dense, Masked, Matrix, Mixing, normalised
from pfl.engine.types import Config, Server, Tensor

TOLERANCE = 1e-12  # for an overlap that should equal the threshold
# The authors' code treats sensitivities up to these as 0: the last marked one, and all others.
NO_SENSITIVITY, NO_VALUE = 1e-10, 1e-20


@dataclass(frozen=True)
class FedCAC(Method):
    """Critical elements are averaged with clients that have the same ones, all others with all clients.

    In every tensor a client marks the share tau of elements with the largest sensitivity ``|(theta_end -
    theta_start) theta_end|`` as critical. Critical elements are averaged over the clients whose marks overlap
    with its own by at least

        threshold = mean + t / beta (max - mean)    of the overlaps of all pairs,

    and with no other client once t > beta. All other elements are averaged over all participants. Averages
    are uniform. Figure 3, which is about ``selection``, uses ``collab`` "none".

    Source: Wu et al., ICCV 2023, https://arxiv.org/abs/2309.11103, Algorithm 1.
    State: none; masks last for one round.
    Evaluated: each client's model after aggregation.
    Differs from the authors: the overlap is the share of common marks, as in their code, since the printed
        formula (``overlap`` "literal") grows with the difference; exactly the ``floor(tau * elements)``
        largest are marked, with ties broken by index (their code marks all ties; with ``fling_zero_rule``,
        a last marked sensitivity of 0 marks all elements of positive sensitivity in the tensor); batch norm's
        statistics stay local, as in their code (paper: critical, ``statistics``).
    """

    family = "mixing"

    tau: float = hyper(0.5, "share of critical elements", low=0.0, high=1.0, search=(0.05, 0.95))
    beta: float = hyper(
        0.2,
        "share of the rounds with collaboration (100 of 500)",
        low=0.0,
        search=(0.02, 1.0),
        log=True,
        when=("collab", "time_varying"),
        probe=0.5,
    )
    selection: str = hyper(
        "sensitivity",
        "what is critical: the most or the least sensitive elements, or random ones",
        choices=("sensitivity", "sensitivity_reverse", "random"),
    )
    collab: str = hyper(
        "time_varying",
        "collaborators for critical elements: by the threshold, the 1 or 5 with the largest overlap, or none",
        choices=("time_varying", "top1", "top5", "none"),
    )
    noncritical: str = hyper(
        "average",
        "the other elements are averaged over all, or like the critical ones",
        choices=("average", "as_critical"),
    )
    overlap: str = hyper(
        "shared", "share of common marks, or the printed formula", choices=("shared", "literal")
    )
    fling_zero_rule: bool = hyper(
        False, "a last marked sensitivity of 0 makes all positive ones critical (authors' code)"
    )
    statistics: str = hyper(
        "local",
        "batch norm's statistics: the client's own, or critical (paper)",
        choices=("local", "critical"),
    )

    def aggregate(self, server: Server) -> Mixing:
        present = server.participants
        masks = {name: self._critical(server, name) for name in server.groups.trainable}
        bits = sum(mask[0].numel() for mask in masks.values())
        server.count("masks", up=len(present) * math.ceil(bits / 32))
        inside = Dense(normalised(self._collaborators(server, masks)), rows=present, sources=present)
        mixing: dict[str, Matrix] = {"bn_stats": inside} if self.statistics == "critical" else {}
        if self.noncritical == "as_critical":
            return {**mixing, **dict.fromkeys(masks, inside)}
        outside = Dense(normalised(torch.ones_like(inside.matrix[:1])), sources=present)
        return {**mixing, **{name: Masked(mask, inside, outside) for name, mask in masks.items()}}

    def warnings(self, config: Config) -> tuple[str, ...]:
        if self.statistics == "critical" and config.bn_stats == "local":
            return ("fedcac: bn_stats is local, so that critical statistics are not averaged",)
        return ()

    def _critical(self, server: Server, name: str) -> Tensor:
        """The mask (K, *shape) of one tensor."""
        end = server.uploads[name]
        if self.selection == "random":
            stream = generator(server.seed, f"fedcac {name}", server.round)
            order = torch.as_tensor(stream.random(end.shape), device=end.device)
        else:
            order = sensitivity(server.received[name], end)
        ranked = order.flatten(1).argsort(stable=True, dim=1, descending=self.selection == "sensitivity")
        count = whole_part(self.tau, ranked.shape[1])
        mask = torch.zeros_like(ranked, dtype=torch.bool).scatter_(1, ranked[:, :count], True)
        if self.fling_zero_rule and count and self.selection == "sensitivity":
            last = order.flatten(1).gather(1, ranked[:, count - 1 : count])
            mask = torch.where(last <= NO_SENSITIVITY, order.flatten(1) > NO_VALUE, mask)
        return mask.view_as(end)

    def _collaborators(self, server: Server, masks: dict[str, Tensor]) -> Tensor:
        """(K, K): 1 if the row's client averages critical elements with the column's, or is the same."""
        itself = torch.eye(len(server.participants), dtype=torch.float64, device=server.participants.device)
        over = server.round > whole_part(self.beta, server.rounds)
        nothing = not any(bool(mask.any()) for mask in masks.values())
        single = self.collab == "none" or (self.collab == "time_varying" and over)
        if single or nothing or len(itself) == 1:
            return itself
        others = itself == 0
        overlaps = self._overlaps(masks)
        if self.collab == "time_varying":
            mean, largest = overlaps[others].mean(), overlaps[others].max()
            threshold = mean + server.round / (self.beta * server.rounds) * (largest - mean)
            return itself + (others & (overlaps >= threshold - TOLERANCE))
        count = min(int(self.collab.removeprefix("top")), len(itself) - 1)
        ranked = overlaps.masked_fill(itself > 0, -1).argsort(stable=True, dim=1, descending=True)
        return itself.scatter_(1, ranked[:, :count], 1.0)

    def _overlaps(self, masks: dict[str, Tensor]) -> Tensor:
        """(K, K) overlaps of the clients' masks; 0 for a client without marks."""
        common = torch.stack([_products(mask.flatten(1).double()) for mask in masks.values()]).sum(0)
        marks = common.diagonal()
        different = marks[:, None] + marks - 2 * common
        if self.overlap == "literal":
            return different / (2 * sum(mask[0].numel() for mask in masks.values()))
        # 1 - different / (2 marks), which is common / marks if all have the same number of marks.
        twice = 2 * marks[:, None]
        return torch.where(twice > 0, (twice - different) / twice.clamp(min=1), 0.0)


def _products(rows: Tensor) -> Tensor:
    return rows @ rows.T
