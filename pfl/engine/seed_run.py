"""One seed of one configuration in progress: its federation, its history and its results."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from pfl.core.errors import InvalidInput
from pfl.engine import checkpoint
from pfl.engine.client_scores import client_metrics
from pfl.engine.evaluation import Known, evaluate
from pfl.engine.method import Method
from pfl.engine.metrics import ClientMetric, ClientResult, Evaluated, Metrics, Unseen
from pfl.engine.server import Server

_FIXED = {"method", "server", "unread", "ids", "test_unseen"}
"""Attributes that a checkpoint does not store; of the server it stores `checkpoint.server_state`."""


@dataclass
class SeedRun:
    """One seed of one configuration in progress.

    Attributes:
        unread: the participants' losses (K,) of each round since the last `read`, on the device.
        losses: the mean loss of each round since the last evaluation; `finish` keeps them.
        held_out: accuracies on the samples held out for early stopping.
        ids: the index of each client in the partition; unseen clients come last.
        test_unseen: evaluates the unseen clients; None if there are none.
    """

    method: Method
    server: Server
    history: list[Evaluated] = field(default_factory=list)
    per_client: Tensor | None = None
    bytes_down: int = 0
    bytes_up: int = 0
    unread: list[Tensor] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    diverged_at: int | None = None
    stopped_at: int | None = None
    known: Known = field(default_factory=dict)
    measurements: list[Any] = field(default_factory=list)
    client_metrics: dict[str, ClientMetric] = field(default_factory=dict)
    held_out: list[float] = field(default_factory=list)
    ids: Sequence[int] = ()
    test_unseen: Callable[[], Unseen] | None = None
    unseen: Unseen | None = None

    def state(self) -> dict[str, Any]:
        """Everything that a checkpoint stores.

        Raises:
            InvalidInput: a measurement, or an entry of the method's state, cannot be stored.
        """
        self.server.check_state(type(self.method).__name__)
        for value in tree_leaves(self.measurements):
            if not isinstance(value, checkpoint.MEASURED):
                accepted = (
                    "numbers, strings, tensors, arrays, lists and dictionaries, as a checkpoint is written"
                )
                raise InvalidInput("measure", f"a value of type {type(value).__name__}", accepted)
        own = {name: value for name, value in vars(self).items() if name not in _FIXED}
        return {**checkpoint.server_state(self.server), "run": own}

    def restore(self, state: dict[str, Any]) -> None:
        checkpoint.restore_server(self.server, state)
        vars(self).update({name: state["run"][name] for name in vars(self).keys() - _FIXED})

    def read(self) -> bool:
        """Wait for the losses of the rounds since the last call, and record whether the last round diverged.

        Returns:
            Whether an earlier round diverged, so that the rounds after it must be discarded.
        """
        each = torch.cat(self.unread).cpu().split([len(losses) for losses in self.unread])
        self.unread = []
        self.losses = [*self.losses, *(sum(losses.tolist()) / len(losses) for losses in each)]
        *earlier, last = (bool(losses.isfinite().all()) for losses in each)
        if not last:
            self.diverged_at = self.server.round
        return not all(earlier)

    def evaluate(self, chosen: Sequence[str] = ()) -> None:
        """Add this round's evaluation to the history, at the moments ``chosen``; () means all moments."""
        scores, groups, self.per_client = evaluate(self.server, self.method, self.known, chosen)
        self.history.append(
            Evaluated(
                round=self.server.round,
                **scores,
                train_loss=sum(self.losses) / len(self.losses),
                bytes_down=self.bytes_down,
                bytes_up=self.bytes_up,
                groups=groups,
            )
        )

    @property
    def ended(self) -> bool:
        """Whether the run has diverged or was stopped."""
        return self.diverged_at is not None or self.stopped_at is not None

    def reaches_plateau(self) -> bool:
        """Evaluate on the samples held out for early stopping; return whether training should stop."""
        config, headline = self.server.config, self.method.headline
        scores, _, _ = evaluate(self.server, self.method, {}, (headline,), self.server.federation.held_out)
        self.held_out = [*self.held_out, scores[headline].pooled]
        return is_plateau(self.held_out, config.patience, config.min_delta)

    def finish(self) -> None:
        """Run the final evaluation: all moments, the metrics other than accuracy, and the unseen clients."""
        self.evaluate()
        self.client_metrics = client_metrics(self.server, self.method, self.server.config.metrics)
        if any(math.isnan(scores.loss) for scores in self.history[-1].moments.values()):
            # It diverged in the last step, after which training computes no loss.
            self.diverged_at = self.server.round
        self.unseen = self.test_unseen() if self.test_unseen and self.diverged_at is None else None

    def stop(self) -> None:
        """End before the last round; the final evaluation replaces a regular one after the same round."""
        if self.history and self.history[-1].round == self.server.round:
            self.losses = [self.history.pop().train_loss]
        self.finish()
        self.stopped_at = self.server.round

    def reopen(self, eval_every: int, chosen: Sequence[str]) -> None:
        """Turn the final evaluation back into a regular one, because more rounds follow.

        Args:
            chosen: the moments of regular evaluations; () means all moments.
        """
        if not math.isfinite(self.losses[-1]):  # diverged in training
            return
        self.diverged_at = None
        config = self.server.config
        if config.patience and is_plateau(self.held_out, config.patience, config.min_delta):
            self.stopped_at = self.server.round
            return
        self.client_metrics, self.unseen = {}, None
        if self.server.round % eval_every:
            self.history.pop()
        else:
            self.history[-1] = self.history[-1].reduced(chosen)
            self.losses = []

    def metrics(self) -> Metrics:
        """The results after the last evaluation."""
        federation = self.server.federation
        assert self.per_client is not None
        per_client = tuple(
            ClientResult(
                client=self.ids[client],
                train=len(federation.train[client]),
                test=len(federation.test[client]),
                accuracy=None if math.isnan(accuracy) else accuracy,
            )
            for client, accuracy in enumerate(self.per_client.tolist())
        )
        similarities = self.server.config.observe == "similarities" and self.measurements
        return Metrics(
            headline=self.method.headline,
            rounds=tuple(self.history),
            per_client=per_client,
            bytes_down=self.bytes_down,
            bytes_up=self.bytes_up,
            pretrained=self.server.program.net.pretrained,
            similarities=self.measurements[-1] if similarities else None,
            client_metrics=self.client_metrics,
            diverged_at=self.diverged_at,
            stopped_at=self.stopped_at,
            unseen=self.unseen,
        )


def is_plateau(accuracies: Sequence[float], patience: int, min_delta: float) -> bool:
    """Whether none of the last ``patience`` accuracies exceeds the earlier best by more than ``min_delta``.

    >>> [is_plateau(accuracies, 2, 0.5) for accuracies in ([70], [70, 70.4, 70.6], [70, 70.4, 70.5])]
    [False, False, True]
    """
    best, since = -math.inf, 0
    for accuracy in accuracies:
        best, since = (accuracy, 0) if accuracy > best + min_delta else (best, since + 1)
    return since >= patience
