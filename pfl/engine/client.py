"""What a local program sees: one client, one batch. Both backends run the same program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Client:
    """One client, as its local program sees it; under the stacked backend, one slice of every stack.

    Attributes:
        net: the client's networks, bound to its current tensors; call it, or its submodules.
        params: the client's current tensors by name, statistics included.
        start: what it received at the beginning of the round, by name.
        state: its rows of the method's client state, by name.
        trained: names of the parameters that the current phase moves.
    """

    net: nn.Module
    params: Mapping[str, Tensor]
    start: Mapping[str, Tensor]
    state: Mapping[str, Tensor]
    trained: tuple[str, ...] = ()

    def distance_squared(self) -> Tensor:
        """||theta - theta_start||^2 over the parameters in training."""
        return torch.stack([(self.params[n] - self.start[n]).square().sum() for n in self.trained]).sum()


@dataclass(frozen=True)
class Batch:
    """A minibatch.

    Attributes:
        x: images (B, C, H, W), normalised.
        y: labels (B,).
        rows: (B,), 1 for a real row and 0 for padding; None: all are real.
    """

    x: Tensor
    y: Tensor
    rows: Tensor | None = None

    def mean(self, values: Tensor) -> Tensor:
        """The mean of per-sample ``values`` (B,) over the real rows."""
        if self.rows is None:
            return values.mean()
        return (values * self.rows).sum() / self.rows.sum()

    def cross_entropy(self, logits: Tensor) -> Tensor:
        """Mean cross-entropy of ``logits`` (B, classes)."""
        if self.rows is None:
            return F.cross_entropy(logits, self.y)
        return self.mean(F.cross_entropy(logits, self.y, reduction="none"))
