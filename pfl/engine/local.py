"""Local training: what a round's participants have to do, independent of the backend that does it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from pfl.config import Config
from pfl.data.federation import Federation
from pfl.engine.groups import Groups
from pfl.engine.method import Method, Phase
from pfl.engine.streams import generator


@dataclass(frozen=True)
class Program:
    """The local program of a simulation: written for one client, run by a backend for many.

    Attributes:
        net: the client's networks; a template whose tensors the backend binds.
    """

    method: Method
    net: nn.Module
    groups: Groups
    config: Config
    federation: Federation

    def prepare(self, phase: Phase) -> tuple[str, ...]:
        """Put ``net`` in the mode of ``phase`` and return the names of the parameters that it moves.

        Batch norm of a frozen group normalises by its running statistics and leaves them as they are.
        """
        trained = self.groups.trained(phase.trains)
        self.net.train()
        moving = set(trained)
        for path, module in self.net.named_modules():
            if isinstance(module, _BatchNorm) and f"{path}.weight" not in moving:
                module.eval()
        return trained


@dataclass(frozen=True)
class Task:
    """Local training of the participants of one round (of one seed, or of several, one after another).

    Attributes:
        clients: (K,) client ids.
        seeds: (K,) the seed of each.
        start: name to (K, *shape), what each starts from.
        state: name to (K, *shape), each one's rows of the method's client state.
    """

    round: int
    clients: Sequence[int]
    seeds: Sequence[int]
    phases: Sequence[Phase]
    start: Mapping[str, Tensor]
    state: Mapping[str, Tensor]

    def schedules(self, program: Program) -> list[list[list[np.ndarray]]]:
        """For each participant and phase, the batches: arrays of pooled indices."""
        return [
            list(self._batches(program, seed, client))
            for seed, client in zip(self.seeds, self.clients, strict=True)
        ]

    def _batches(self, program: Program, seed: int, client: int) -> Iterator[list[np.ndarray]]:
        samples = program.federation.train[client]
        size = program.config.batch_size
        stream = generator(seed, "batches", self.round, client)
        for phase in self.phases:
            epochs = program.config.epochs if phase.epochs is None else phase.epochs
            batches = []
            for _ in range(epochs):
                order = samples[stream.permutation(len(samples))]
                batches += [order[i : i + size] for i in range(0, len(order), size)]
            # A batch of one sample has no batch-norm statistics; larger remainders are kept.
            yield [batch for batch in batches if len(batch) > 1]


@dataclass(frozen=True)
class Trained:
    """What came back: name to (K, *shape), the mean training loss (K,), and the samples seen in training."""

    tensors: dict[str, Tensor]
    losses: Tensor
    samples: int


class Backend(Protocol):
    """Runs local programs and evaluations; `pfl.engine.loop` and `pfl.engine.stacked` agree to rounding."""

    def train(self, program: Program, task: Task) -> Trained: ...

    def evaluate(
        self,
        program: Program,
        tensors: Mapping[str, Tensor],
        state: Mapping[str, Tensor],
        samples: Sequence[np.ndarray],
    ) -> tuple[Tensor, Tensor]:
        """Evaluate K models, each on its own samples.

        Args:
            tensors: name to (K, *shape).
            state: the models' rows of the method's client state.
            samples: K arrays of pooled indices.

        Returns:
            (K,) correct predictions and (K,) sums of cross-entropy, float64.
        """
        ...


class SGD:
    """Plain SGD with optional momentum and weight decay, on a list of tensors or of prefixes of stacks."""

    def __init__(self, config: Config, phase: Phase, params: list[Tensor]):
        self.lr = config.lr * phase.lr
        self.momentum = config.momentum
        self.weight_decay = config.weight_decay
        self.velocity = [torch.zeros_like(p) for p in params] if config.momentum else []

    @torch.no_grad()
    def step(
        self, params: list[Tensor], gradients: list[Tensor] | tuple[Tensor, ...], active: int | None = None
    ) -> None:
        """Move ``params`` in place; ``active``: only the first so many slices of the stacks take part."""
        if self.weight_decay:
            gradients = torch._foreach_add(gradients, params, alpha=self.weight_decay)
        if self.momentum:
            velocity = [v[:active] for v in self.velocity]
            torch._foreach_mul_(velocity, self.momentum)
            torch._foreach_add_(velocity, gradients)
            gradients = velocity
        torch._foreach_add_(params, gradients, alpha=-self.lr)
