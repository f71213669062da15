"""Local programs: what clients compute, independent of the backend that runs it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import keystr, tree_leaves_with_path

from pfl.core.config import Config
from pfl.core.rng import generator, integer_seed
from pfl.data.augmentation import draw
from pfl.data.federation import Federation
from pfl.engine.client import Batch, Client
from pfl.engine.groups import Groups
from pfl.engine.method import Method, Phase
from pfl.engine.state import State, joined, rows
from pfl.models._conv import ResNetConv2d
from pfl.models._layers import BatchNorm, Dropout, SingleClientMode
from pfl.models._network import Network

ADAPTATION = "adaptation"
"""The purpose (of random streams) of training before an evaluation; its learning rate has no schedule."""

KEY_STRIDE = 1000  # between the keys of two steps; leaves room for one key per layer


@dataclass(frozen=True)
class Program:
    """The local program of a configuration: written for one client, run by a backend for many.

    Attributes:
        net: the client's networks: a template to which the backend binds tensors. Configurations in lockstep
            share it.
    """

    method: Method
    net: Network
    groups: Groups
    config: Config
    federation: Federation

    @cached_property
    def norms(self) -> tuple[BatchNorm, ...]:
        return tuple(module for module in self.net.modules() if isinstance(module, BatchNorm))

    def single_client(self) -> None:
        """Switch ``net`` to the mode for one client at a time."""
        for module in self.net.modules():
            if isinstance(module, SingleClientMode):
                module.single_client = True

    @property
    def by_tap(self) -> set[str]:
        """Names of the weights that are read tap by tap, known after the first step."""
        layers = self.net.named_modules()
        return {
            f"{path}.weight" for path, layer in layers if isinstance(layer, ResNetConv2d) and layer.by_tap
        }

    @cached_property
    def dropouts(self) -> tuple[Dropout, ...]:
        return tuple(module for module in self.net.modules() if isinstance(module, Dropout))

    def client(
        self,
        params: Mapping[str, Tensor],
        start: Mapping[str, Tensor],
        state: State,
        trained: tuple[str, ...],
        kind: type[Client] = Client,
    ) -> Client:
        """One client of this program in training."""
        return kind(self.net, params, start, state, trained, self.norms, self.dropouts)

    @property
    def keyed(self) -> bool:
        """Whether training draws random numbers from the keys of its steps."""
        return bool(self.dropouts) or self.config.augmentation != "none"

    def batch(self, index: Tensor, key: Tensor | None, number: int) -> tuple[Tensor, Tensor]:
        """Images and labels of a training step's batch ``number``, augmented as the step's ``key`` decides.

        Args:
            index: (..., B) pooled indices.
            key: (...,); dropout uses the lowest numbers of a key's stride, augmentation the highest.
        """
        augmentation = self.config.augmentation
        if augmentation == "none" or key is None:
            return self.federation.batch(index)
        moves = draw(augmentation, key + (KEY_STRIDE - 1 - number), index.shape[-1])
        return self.federation.batch(index, moves)

    def prepare(self, phase: Phase) -> tuple[str, ...]:
        """Put ``net`` in the mode of ``phase`` and return the names of the parameters that it trains.

        Batch norm of a frozen group normalises by its running statistics and leaves them as they are. A phase
        that trains nothing is in evaluation mode, without dropout.
        """
        trained = self.groups.trained(phase.trains)
        self.net.train(bool(trained))
        moving = set(trained)
        for path, module in self.net.named_modules():
            if isinstance(module, _BatchNorm) and f"{path}.weight" not in moving:
                module.eval()
        return trained

    def loss(self, phase: Phase) -> Callable[[Client, Batch], Tensor]:
        return phase.loss or self.method.loss


@dataclass(frozen=True)
class StepBatches:
    """One step of one client: pooled indices of its batches, its random numbers, and its key."""

    batches: tuple[np.ndarray, ...]
    noise: np.ndarray | None
    key: int


@dataclass(frozen=True)
class Task:
    """Local training of K clients of one simulation, or of several whose clients are concatenated.

    Attributes:
        purpose, round: select the random streams.
        programs: (K,) the local program of each client.
        phases: (K,) the phases of each client in this round, the same number for all.
        clients: (K,) client ids.
        seeds: (K,) the seed of each client.
        samples: K arrays of pooled indices, each client's training samples; by class in a class stream.
        positions: (K,) minibatches that each client has drawn from its class stream so far.
        start: name to (K, *shape), the tensors that each client starts from.
        state: (K, *shape) each, the clients' rows of the client state, and what the server sent.
    """

    purpose: str
    round: int
    programs: Sequence[Program]
    phases: Sequence[Sequence[Phase]]
    clients: Sequence[int]
    seeds: Sequence[int]
    samples: Sequence[np.ndarray]
    positions: Sequence[int]
    start: Mapping[str, Tensor]
    state: State

    def part(self, clients: slice) -> Task:
        """The training of some of the clients."""
        return dataclasses.replace(
            self,
            **{name: getattr(self, name)[clients] for name in _PER_CLIENT},
            start=rows(self.start, clients),
            state=rows(self.state, clients),
        )

    @cached_property
    def structure(self) -> Hashable:
        """Equal for tasks that can share a stack."""
        method = self.programs[0].method

        def code(hook: Any) -> Any:
            # A bound method can be rebound to other numbers; a closure keeps those that it captured.
            bound = getattr(hook, "__self__", None) is method
            return hook.__func__ if bound else hook and (method, _identity(hook))

        phases = [
            (
                dataclasses.replace(phase, lr=1.0, loss=None, gradient=None, step=None),
                *map(code, phase.hooks.values()),
            )
            for phase in self.phases[0]
        ]
        shapes = (
            tuple((keystr(path), stack.shape[1:]) for path, stack in tree_leaves_with_path(dict(part)))
            for part in (self.start, self.state)
        )
        # Unseen clients have another federation, whose local trainings may be longer, and another method.
        return (type(method), self.programs[0].federation.clients, *phases, *shapes)

    def lr(self, k: int, phase: Phase) -> float:
        """The learning rate of the k-th client in a phase."""
        config = self.programs[k].config
        return (config.lr if self.purpose == ADAPTATION else config.lr_in(self.round)) * phase.lr

    @property
    def repeats(self) -> bool:
        """Whether a later round of the same structure runs the same steps: no hook refers to this round."""
        method = self.programs[0].method
        hooks = [hook for phase in self.phases[0] for hook in phase.hooks.values() if hook]
        return all(getattr(hook, "__self__", None) is method for hook in hooks)

    @staticmethod
    def joined(tasks: Sequence[Task]) -> Task:
        """The tasks of several simulations joined into one with more clients."""
        first = tasks[0]
        if len(tasks) == 1:
            return first
        per_client: dict[str, Any] = {
            name: [value for task in tasks for value in getattr(task, name)] for name in _PER_CLIENT
        }
        return dataclasses.replace(
            first,
            **per_client,
            start=joined(torch.cat, [task.start for task in tasks]),
            state=joined(torch.cat, [task.state for task in tasks]),
        )

    def schedules(self) -> list[list[list[StepBatches]]]:
        """For each client and phase, its steps."""
        return [self.schedule(k) for k in range(len(self.clients))]

    def schedule(self, k: int) -> list[list[StepBatches]]:
        """The steps of the k-th client in each phase."""
        config, samples, position = self.programs[k].config, self.samples[k], self.positions[k]
        seed, client = self.seeds[k], self.clients[k]
        stream = generator(seed, self.purpose, self.round, client)
        key = integer_seed(seed, f"{self.purpose} keys", self.round, client) >> 1
        schedule = []
        for phase in self.phases[k]:
            if config.batch_order == "shuffled":
                batches = _shuffled(phase, config, samples, stream)
            elif config.batch_order == "fixed":
                batches = _stream(phase, config, samples, 0)
            else:
                batches = _stream(phase, config, samples, position)
                position += len(batches)
            if 0 < len(batches) < phase.batches:
                batches = [batches[i % len(batches)] for i in range(phase.batches)]
            plans = []
            for i in range(0, len(batches) - phase.batches + 1, phase.batches):
                noise = stream.random(phase.noise) if phase.noise else None
                plans.append(
                    StepBatches(tuple(batches[i : i + phase.batches]), noise, key := key + KEY_STRIDE)
                )
            schedule.append(plans)
        return schedule

    def batches_consumed(self) -> list[int]:
        """The number of minibatches that each client draws."""
        return [
            sum(minibatch_count(phase, program.config, len(samples)) for phase in phases)
            for program, phases, samples in zip(self.programs, self.phases, self.samples, strict=True)
        ]


def _identity(hook: Any) -> Hashable:
    """Equal for functions of the same code that captured equal values; of anything else, only for itself."""
    try:
        captured = (
            getattr(hook, "__self__", None),
            tuple(cell.cell_contents for cell in hook.__closure__ or ()),
            hook.__defaults__,
            tuple((hook.__kwdefaults__ or {}).items()),
        )
        hash(captured)
    except (AttributeError, TypeError, ValueError):  # no function, a value without a hash, an unset variable
        return id(hook)
    return hook.__code__, captured


_PER_CLIENT = ("programs", "phases", "clients", "seeds", "samples", "positions")


def minibatch_count(phase: Phase, config: Config, samples: int) -> int:
    """The number of minibatches that a client with this many ``samples`` draws in a phase."""
    _, each = _cut(phase, config, samples)
    epochs = config.epochs if phase.epochs is None else phase.epochs
    # Partial epochs are rounded up, but not because of floating-point error.
    return math.ceil(each * epochs - 1e-9) if phase.steps is None or not each else phase.steps * phase.batches


def _cut(phase: Phase, config: Config, samples: int) -> tuple[int, int]:
    """The size of a minibatch, and the number of them in an epoch.

    An incomplete batch of one sample has no batch-norm statistics and is always left out.
    """
    size = phase.batch_size or config.batch_size
    complete = samples // size
    kept = config.last_batch == "kept" or not complete
    return size, complete + (kept and samples % size > 1)


def _shuffled(
    phase: Phase, config: Config, samples: np.ndarray, stream: np.random.Generator
) -> list[np.ndarray]:
    """Minibatches of a phase, shuffled every epoch."""
    size, each = _cut(phase, config, len(samples))
    wanted = minibatch_count(phase, config, len(samples))
    batches: list[np.ndarray] = []
    while len(batches) < wanted:
        order = samples[stream.permutation(len(samples))]
        batches += [order[i * size : (i + 1) * size] for i in range(each)]
    return batches[:wanted]


def _stream(phase: Phase, config: Config, samples: np.ndarray, position: int) -> list[np.ndarray]:
    """Minibatches of a phase that cycles through the samples in order, from minibatch ``position`` on."""
    size, each = _cut(phase, config, len(samples))
    wanted = minibatch_count(phase, config, len(samples))
    return [samples[i % each * size :][:size] for i in range(position, position + wanted)]


@dataclass(frozen=True)
class Trained:
    """The result of local training: tensors and state, (K, *shape) each; mean loss (K,); samples. That of one
    client may lack the leading axis.

    Attributes:
        samples: the number of samples processed by all clients together.
    """

    tensors: dict[str, Tensor]
    state: State
    losses: Tensor
    samples: int

    def part(self, clients: slice) -> Trained:
        """The tensors, state and losses of some of the clients."""
        tensors, state = rows(self.tensors, clients), rows(self.state, clients)
        return Trained(tensors, state, self.losses[clients], self.samples)

    @staticmethod
    def joined(parts: Sequence[Trained], join: Callable[..., Tensor] = torch.cat) -> Trained:
        """The results of all clients, from those of consecutive parts, or of each with `torch.stack`."""
        return Trained(
            joined(join, [part.tensors for part in parts]),
            joined(join, [part.state for part in parts]),
            join([part.losses for part in parts]),
            sum(part.samples for part in parts),
        )


Statistic = Callable[[Client, Batch], Mapping[str, Tensor]]
"""Sums over the real rows of a batch, by name; or a value per row, (B, ...), for `collect` with ``each``."""


class Backend(Protocol):
    """Runs local programs; `pfl.engine.loop` and `pfl.engine.stacked` agree up to rounding.

    Attributes:
        processes: the number of processes that share the models of a call.
    """

    processes: int

    def train(self, task: Task) -> Trained: ...

    def collect(
        self,
        program: Program,
        statistic: Statistic,
        tensors: Mapping[str, Tensor],
        state: State,
        samples: Sequence[np.ndarray],
        each: bool = False,
    ) -> dict[str, Tensor]:
        """Sums of a statistic over data, for K models in evaluation mode, each on its own samples.

        Args:
            tensors: name to (K, *shape).
            state: the models' rows of the method's client state.
            samples: K arrays of pooled indices.
            each: return the statistic of each sample instead of the sum.

        Returns:
            Name to (K, ...), float64; with ``each`` (K, M, ...) in the order of the samples, where M is the
            largest number of samples; places without a sample are 0.
        """
        ...


class SGD:
    """Plain SGD with optional momentum and weight decay, on a list of tensors or of prefixes of stacks.

    Args:
        lr: the learning rate, or (K,) one for each slice of the stacks.
    """

    def __init__(self, config: Config, lr: float | Tensor, params: list[Tensor]):
        self.lr = lr
        self.momentum = config.momentum
        self.weight_decay = config.weight_decay
        self.velocity = [torch.zeros_like(p) for p in params] if config.momentum else []

    def reset(self) -> None:
        """Reset the momentum."""
        for velocity in self.velocity:
            velocity.zero_()

    @torch.no_grad()
    def step(
        self, params: list[Tensor], gradients: list[Tensor] | tuple[Tensor, ...], active: int | None = None
    ) -> None:
        """Update ``params`` in place; with ``active``, only the first ``active`` slices of the stacks."""
        if self.weight_decay:
            gradients = torch._foreach_add(gradients, params, alpha=self.weight_decay)
        if self.momentum:
            velocity = [v[:active] for v in self.velocity]
            torch._foreach_mul_(velocity, self.momentum)
            torch._foreach_add_(velocity, gradients)
            gradients = velocity
        if isinstance(self.lr, Tensor):
            rates = [self.lr[:active].view(-1, *[1] * (p.dim() - 1)) for p in params]
            torch._foreach_addcmul_(params, gradients, rates, value=-1)
        else:
            torch._foreach_add_(params, gradients, alpha=-self.lr)
