"""The stacked backend: all clients at once, their tensors stacked along a leading axis.

The fast way on a GPU. Clients are ordered by their number of steps, so that those still training are a prefix
of the stack and nobody is padded to the largest; only a batch that is smaller than the others of its step is
padded, with rows that neither the loss nor batch norm sees. Clients of several configurations share a stack,
each with its own learning rate and numbers of its method. Where memory does not suffice for all clients at
once, they are stacked in chunks; the numbers are then the same to rounding.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MethodType
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from pfl import memory
from pfl.engine.client import Batch, Client
from pfl.engine.groups import bind
from pfl.engine.local import SGD, Plan, Program, Statistic, Task, Trained
from pfl.engine.method import Phase

log = logging.getLogger(__name__)

T = TypeVar("T")

Stacks = Mapping[str, Tensor]


class StackedBackend:
    """See `pfl.engine.local.Backend`.

    Attributes:
        clients: most that are trained at once; None: all. Halved whenever memory does not suffice.
        images: most at once over all models of an evaluation. Likewise.
    """

    def __init__(self) -> None:
        self.clients: int | None = None
        self.images = 8192

    def train(self, task: Task) -> Trained:
        count = len(task.clients)

        def in_chunks(size: int) -> Trained:
            starts = range(0, count, size)
            return Trained.joined([_train(task.part(slice(i, i + size))) for i in starts])

        asked = min(self.clients or count, count)
        trained, sufficed = _halving(in_chunks, asked, "clients")
        if sufficed < asked:
            self.clients = sufficed
        return trained

    def collect(
        self,
        program: Program,
        statistic: Statistic,
        tensors: Mapping[str, Tensor],
        state: Mapping[str, Tensor],
        samples: Sequence[np.ndarray],
    ) -> dict[str, Tensor]:
        def with_images(size: int) -> dict[str, Tensor]:
            return _collect(program, statistic, tensors, state, samples, size)

        sums, self.images = _halving(with_images, self.images, "images")
        return sums


def _halving(run: Callable[[int], T], size: int, what: str) -> tuple[T, int]:
    """``run(size)``, of half the size as often as memory does not suffice, and the size that did."""
    while True:
        try:
            return run(size), size
        except Exception as error:
            if size == 1 or not memory.ran_out(error):
                raise
        # Outside of the handler, since the error's traceback holds on to what did not fit.
        size //= 2
        log.warning("out of memory: going on with %d %s at once", size, what)
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()


def _train(task: Task) -> Trained:
    """Train all clients of ``task`` at once."""
    schedules = task.schedules()
    device = task.programs[0].federation.device
    steps = np.array([sum(map(len, schedule)) for schedule in schedules])
    by_steps = np.argsort(-steps, kind="stable")
    order = torch.from_numpy(by_steps).to(device)
    params = {name: stack[order] for name, stack in task.start.items()}
    start = {name: stack[order] for name, stack in task.start.items()}
    state = {name: stack[order] for name, stack in task.state.items()}
    losses = torch.zeros(len(steps), dtype=torch.float64, device=device)
    samples = 0
    programs = [task.programs[k] for k in by_steps]
    for i, phase in enumerate(task.phases[0]):
        plans = [schedules[k][i] for k in by_steps]
        part = _Part(programs, [task.phases[k][i] for k in by_steps])
        losses += _train_phase(part, plans, params, start, state)
        samples += phase.repeat * sum(len(batch) for mine in plans for plan in mine for batch in plan.batches)
    inverse = torch.argsort(order)
    return Trained(
        {name: stack[inverse] for name, stack in params.items()},
        {name: stack[inverse] for name, stack in state.items()},
        losses[inverse] / torch.from_numpy(np.maximum(steps, 1)).to(device),
        samples,
    )


@torch.no_grad()
def _collect(
    program: Program,
    statistic: Statistic,
    tensors: Mapping[str, Tensor],
    state: Mapping[str, Tensor],
    samples: Sequence[np.ndarray],
    images: int,
) -> dict[str, Tensor]:
    """See `pfl.engine.local.Backend.collect`; at most ``images`` at once."""
    federation, net = program.federation, program.net
    net.eval()

    def sums_of(params: Stacks, state: Stacks, x: Tensor, y: Tensor, rows: Tensor) -> Stacks:
        bind(net, params)
        return statistic(Client(net, params, params, state), Batch(x, y, rows))

    sums: dict[str, Tensor] = {}
    order = np.argsort([-len(indices) for indices in samples], kind="stable")
    together = max(1, images // max(len(samples[order[0]]), 1))
    for first in range(0, len(order), together):
        models = order[first : first + together]
        index, rows = _padded([samples[k] for k in models], federation.device)
        at = torch.from_numpy(models).to(federation.device)
        for column in range(0, index.shape[1], images):
            part = slice(column, column + images)
            x, y = federation.batch(index[:, part])
            found = torch.vmap(sums_of)(
                {name: stack[at] for name, stack in tensors.items()},
                {name: stack[at] for name, stack in state.items()},
                x,
                y,
                rows[:, part].to(x),
            )
            for name, value in found.items():
                if name not in sums:
                    sums[name] = value.new_zeros((len(samples), *value.shape[1:]), dtype=torch.float64)
                sums[name][at] += value
    return sums


class _Part:
    """A phase that all clients of a stack are in, and the numbers in which they differ.

    Args:
        programs, phases: (K,) of each client, alike but for these numbers.

    Attributes:
        lr: the learning rate, (K,) where it is not the same for all.
        numbers: name to (K,), the hyperparameters that are not the same for all.
    """

    def __init__(self, programs: Sequence[Program], phases: Sequence[Phase]):
        self.program, self.phase = programs[0], phases[0]
        self.lr = self._common(
            [one.config.lr * phase.lr for one, phase in zip(programs, phases, strict=True)]
        )
        values = [one.method.numbers() for one in programs]
        common = {name: self._common([own[name] for own in values]) for name in values[0]}
        self.numbers = {name: value for name, value in common.items() if isinstance(value, Tensor)}

    def of(self, numbers: Stacks) -> tuple[Program, Phase]:
        """Program and phase of the client with these ``numbers`` (), by name."""
        if not numbers:
            return self.program, self.phase
        method = self.program.method.having(numbers)

        def rebound(hook: Any) -> Any:
            return hook and MethodType(hook.__func__, method)

        phase = dataclasses.replace(
            self.phase,
            loss=rebound(self.phase.loss),
            gradient=rebound(self.phase.gradient),
            step=rebound(self.phase.step),
        )
        return dataclasses.replace(self.program, method=method), phase

    def _common(self, values: Sequence[float]) -> float | Tensor:
        federation = self.program.federation
        if len(set(values)) == 1:
            return values[0]
        return torch.tensor(values, dtype=federation.dtype, device=federation.device)


def _train_phase(
    part: _Part, plans: list[list[Plan]], params: Stacks, start: Stacks, state: Stacks
) -> Tensor:
    """Run one phase on the stacks, in place; return each client's sum of losses (K,)."""
    program, phase = part.program, part.phase
    federation = program.federation
    trained = program.prepare(phase)
    step = _custom_step(part, trained) if phase.step else _gradient(part, trained)
    optimiser = SGD(program.config, part.lr, [params[name] for name in trained])
    losses = torch.zeros(len(plans), dtype=torch.float64, device=federation.device)
    for active, batches in _steps(program, plans):

        def first(stacks: Stacks, n: int = active) -> dict[str, Tensor]:
            return {name: stack[:n] for name, stack in stacks.items()}

        moving = first({name: params[name] for name in trained})
        others = first({name: stack for name, stack in params.items() if name not in moving})
        rows = first(state)
        numbers = first(part.numbers)
        if phase.step and isinstance(part.lr, Tensor):
            numbers["lr"] = part.lr[:active]
        arguments = (moving, others, first(start), rows, batches, numbers)
        for _ in range(phase.repeat):
            changed, values = torch.vmap(step, in_dims=_leading(arguments))(*arguments)
            if phase.step:
                for stacks, new in zip((moving, rows), changed, strict=True):
                    for name, value in new.items():
                        stacks[name].copy_(value)
            else:
                optimiser.step(list(moving.values()), [changed[name] for name in trained], active)
        losses[:active] += values
    for norm in program.norms:
        norm.rows = None
    return losses


def _leading(arguments: Any) -> Any:
    """vmap's ``in_dims`` for nested arguments whose tensors all have the client axis first."""
    if isinstance(arguments, tuple | list):
        return type(arguments)(map(_leading, arguments))
    if isinstance(arguments, Mapping):
        return {name: _leading(value) for name, value in arguments.items()}
    return None if arguments is None else 0


def _gradient(part: _Part, trained: tuple[str, ...]) -> Callable[..., Any]:
    """One client's gradient of the phase's loss, or what the phase has in its place, and the loss."""

    def gradient(
        weights: Stacks, others: Stacks, start: Stacks, state: Stacks, batches: list, numbers: Stacks
    ) -> Any:
        program, phase = part.of(numbers)
        client = program.client({**others, **weights}, start, state, trained)
        if phase.gradient is None:
            return client.gradient(program.loss(phase), Batch(*batches[0]))
        direction, value = phase.gradient(client, tuple(Batch(*batch) for batch in batches))
        return dict(direction), value

    return gradient


def _custom_step(part: _Part, trained: tuple[str, ...]) -> Callable[..., Any]:
    """One client's new parameters and state after the phase's own step, and the loss."""

    def step(
        weights: Stacks, others: Stacks, start: Stacks, state: Stacks, batches: list, numbers: Stacks
    ) -> Any:
        own = dict(numbers)
        lr = own.pop("lr", part.lr)
        program, phase = part.of(own)
        client = program.client({**others, **weights}, start, state, trained)
        assert phase.step is not None
        found = phase.step(client, tuple(Batch(*batch) for batch in batches), lr)
        return (dict(found.params), dict(found.state)), found.loss

    return step


def _steps(
    program: Program, plans: list[list[Plan]]
) -> Iterator[tuple[int, list[tuple[Tensor | None, ...]]]]:
    """For each step of a phase how many clients are active, which are the first of the stack, and their
    batches, the fields of `Batch` with a leading client axis.

    All indices go to the device before the first step, so that no step moves anything there or waits for it.
    """
    federation = program.federation
    device, dtype = federation.device, federation.dtype
    numbers = [[plan.batches for plan in mine] for mine in plans]
    lengths = np.zeros((max(map(len, plans)), max(map(_breadth, plans)), len(plans)), dtype=np.int64)
    for k, mine in enumerate(numbers):
        for i, batches in enumerate(mine):
            lengths[i, :, k] = [len(batch) for batch in batches]
    real = np.arange(lengths.max(initial=0)) < lengths[..., None]
    table = np.zeros(real.shape, dtype=np.int64)
    for k, mine in enumerate(numbers):
        for i, batches in enumerate(mine):
            table[i, :, k][real[i, :, k]] = np.concatenate(batches)
    index, rows = torch.from_numpy(table).to(device), torch.from_numpy(real).to(device, dtype)
    noise = _by_step([[plan.noise for plan in mine] for mine in plans], device, dtype)
    keys = _by_step([[plan.key for plan in mine] for mine in plans], device) if program.dropouts else None
    for i, sizes in enumerate(lengths):
        active = int((sizes[0] > 0).sum())  # a prefix: the stack is ordered by steps
        found: list[tuple[Tensor | None, ...]] = []
        for j, widths in enumerate(sizes[:, :active]):
            part = (i, j, slice(active), slice(widths.max()))
            ragged = widths.min() < widths.max()
            own = [None if stream is None else stream[i, :active] for stream in (noise, keys)]
            found.append((*federation.batch(index[part]), rows[part] if ragged else None, *own))
        yield active, found


def _breadth(mine: list[Plan]) -> int:
    """How many batches a step of one client sees."""
    return len(mine[0].batches) if mine else 0


def _by_step(
    values: list[list[Any]], device: torch.device, dtype: torch.dtype | None = None
) -> Tensor | None:
    """(steps, K, ...) on the device, zeros after a client's last step; None where there are no values."""
    first = next((value for mine in values for value in mine), None)
    if first is None:
        return None
    table = np.zeros((max(map(len, values)), len(values), *np.shape(first)), dtype=np.asarray(first).dtype)
    for k, mine in enumerate(values):
        table[: len(mine), k] = mine
    return torch.from_numpy(table).to(device, dtype)


def _padded(indices: Sequence[np.ndarray], device: torch.device) -> tuple[Tensor, Tensor]:
    """Index arrays of unequal lengths as (K, longest), padded with index 0, and which entries are real."""
    lengths = np.array([len(index) for index in indices])
    table = np.zeros((len(indices), lengths.max()), dtype=np.int64)
    rows = np.arange(table.shape[1]) < lengths[:, None]
    table[rows] = np.concatenate(indices)
    return torch.from_numpy(table).to(device), torch.from_numpy(rows).to(device)
