"""A stack of clients in training: their tensors along a leading axis, in memory that is not reallocated."""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map, tree_map_

from pfl.core.errors import Conflict
from pfl.engine.client import Batch
from pfl.engine.graphs import Capture, Recorder
from pfl.engine.local_training import SGD, Program, StepBatches, Task, Trained, minibatch_count
from pfl.engine.method import Phase
from pfl.engine.phase_check import check_gradient, check_step
from pfl.engine.state import State, apart, memory, rows
from pfl.engine.step_inputs import StepInputs, Tables
from pfl.engine.transfer import on_device

Stacks = Mapping[str, Tensor]
"""Name to (K, *shape)."""


class PerClientHyperparameters:
    """The clients' learning rates and real-valued hyperparameters in a phase.

    Args:
        programs, phases, rates: one per client; they differ only in these numbers.

    Attributes:
        common: the numbers that are the same for all clients, by name, in a tuple.
        own: name to (K,), the numbers that differ between clients or follow a schedule.
    """

    def __init__(self, programs: Sequence[Program], phases: Sequence[Phase], rates: Sequence[float]):
        self.program, self.phase = programs[0], phases[0]
        federation = self.program.federation
        config = self.program.config
        moves = {"lr"} if config.lr_schedule != "constant" or config.lr_warmup else set()
        values = {"lr": list(rates)}
        for name in self.program.method.numbers():
            values[name] = [getattr(program.method, name) for program in programs]
        common = {name for name, each in values.items() if len(set(each)) == 1} - moves
        self.common = tuple((name, each[0]) for name, each in values.items() if name in common)
        self.own = {
            name: on_device(torch.tensor(each, dtype=federation.dtype), federation.device)
            for name, each in values.items()
            if name not in common
        }

    @property
    def lr(self) -> float | Tensor:
        return self.own["lr"] if "lr" in self.own else dict(self.common)["lr"]


class Stack:
    """Clients in training, by decreasing number of steps, in memory that is not reallocated.

    Attributes:
        params, start, state: (K, *shape) each.
        losses: (K,) the sum over each client's steps, float64.
        runners: one per phase.
    """

    def __init__(self, task: Task, numbers: Sequence[PerClientHyperparameters], capture: Capture | None):
        device = task.programs[0].federation.device
        self.params, self.start, self.state = map(_room_for, (task.start, task.start, task.state))
        self.losses = torch.zeros(len(task.clients), dtype=torch.float64, device=device)
        federations = {program.federation for program in task.programs} if capture else ()
        largest = max((len(own) for federation in federations for own in federation.train), default=0)
        self.runners = [PhaseRunner(self, own, capture, largest) for own in numbers]

    def load(self, task: Task, order: np.ndarray, numbers: Sequence[PerClientHyperparameters]) -> None:
        """Put the clients of ``task`` into the stack, in the given ``order`` (K,)."""
        at = on_device(order, self.losses.device)

        def put(mine: Tensor, theirs: Tensor) -> None:
            torch.index_select(theirs, 0, at, out=mine)

        tree_map_(put, self.start, dict(task.start))
        tree_map_(put, self.state, task.state)
        torch._foreach_copy_(list(self.params.values()), list(self.start.values()))
        for runner, new in zip(self.runners, numbers, strict=True):
            for name, values in new.own.items():
                runner.numbers.own[name].copy_(values)
        self.losses.zero_()

    def trained(self, order: np.ndarray, steps: np.ndarray, samples: int) -> Trained:
        """The results in the order of the task; ``steps`` (K,) are each client's, in the same order."""
        device = self.losses.device
        at = on_device(np.argsort(order), device)
        return Trained(
            rows(self.params, at),
            rows(self.state, at),
            self.losses[at] / on_device(np.maximum(steps, 1), device),
            samples,
        )


def _room_for(stacks: Mapping[str, Any]) -> State:
    like = partial(torch.empty_like, memory_format=torch.contiguous_format)
    rooms: State = tree_map(like, dict(stacks))
    return rooms


class PhaseRunner:
    """Runs a phase of all clients of a stack.

    Args:
        numbers: hyperparameters of the clients, in the order of the stack.
        capture: records its steps; `None` means that nothing is recorded.
        largest: number of samples of the largest client, which has the most steps and the largest batches; 0
            without ``capture``.
    """

    def __init__(
        self, stack: Stack, numbers: PerClientHyperparameters, capture: Capture | None, largest: int
    ):
        self.stack = stack
        self.numbers = numbers
        self.program, self.phase = numbers.program, numbers.phase
        self.lr = numbers.lr
        self.trained = self.program.groups.trained(self.phase.trains)
        self.optimiser = SGD(self.program.config, self.lr, [stack.params[name] for name in self.trained])
        self._written = memory((stack.params, stack.state))
        self._do = Recorder(self._step, capture)
        config = self.program.config
        self._most_steps = minibatch_count(self.phase, config, largest)
        # Not that of earlier rounds: a resumed simulation does not know it, and would round differently.
        self._width = min(self.phase.batch_size or config.batch_size, largest)
        self._inputs: StepInputs | None = None

    def run(self, plans: list[list[StepBatches]]) -> int:
        """Run all steps of the phase; return the number of samples processed."""
        tables = Tables.of(self.program, plans, self._width)
        if self._inputs is None or not self._inputs.fit(tables):
            self._inputs = StepInputs(tables, max(self._most_steps, len(tables.indices)), self.program)
            self._do.forget()
        self._inputs.put(tables)
        self.program.prepare(self.phase)
        self.optimiser.reset()
        for active in tables.active:
            self._do(active)
        for norm in self.program.norms:
            norm.rows = None
        return self.phase.repeat * tables.samples

    def _step(self, active: int) -> None:
        """Run the next step of the first ``active`` clients in place."""
        assert self._inputs is not None
        inputs = self._inputs.take(active)
        stack = self.stack

        def first(stacks: Mapping[str, Any]) -> State:
            return rows(stacks, slice(active))

        batches = [
            (*self.program.batch(index, key, j), real, noise, key)
            for j, (index, real, noise, key) in enumerate(inputs)
        ]
        moving = first({name: stack.params[name] for name in self.trained})
        others = first({name: params for name, params in stack.params.items() if name not in moving})
        state = first(stack.state)
        arguments = (moving, others, first(stack.start), state, batches, first(self.numbers.own))
        for _ in range(self.phase.repeat):
            changed, values = apart(for_all_clients(self._computed, *arguments), self._written)
            if self.phase.step:
                for stacks, new in zip((moving, state), changed, strict=True):
                    for name, value in new.items():
                        tree_map_(torch.Tensor.copy_, stacks[name], value)
            else:
                self.optimiser.step(list(moving.values()), [changed[name] for name in self.trained], active)
        stack.losses[:active].add_(values)

    def _computed(
        self,
        weights: Stacks,
        others: Stacks,
        start: Stacks,
        state: State,
        batches: list[Any],
        numbers: Stacks,
    ) -> Any:
        """One client's gradient, or its parameters and state after a custom step; and the loss."""
        program, phase, lr = self._of(numbers)
        client = program.client({**others, **weights}, start, state, self.trained)
        own = tuple(Batch(*batch) for batch in batches)
        if not (phase.step or phase.gradient):
            return client.gradient(program.loss(phase), own[0])
        client.attach(own[0])
        if phase.step:
            stepped = phase.step(client, own, lr)
            check_step(program.method, stepped, client)
            return (dict(stepped.params), dict(stepped.state)), stepped.loss
        assert phase.gradient is not None
        returned = phase.gradient(client, own)
        check_gradient(program.method, returned, client)
        direction, value = returned
        return dict(direction), value

    def _of(self, numbers: Stacks) -> tuple[Program, Phase, float | Tensor]:
        """Program, phase and learning rate of the client with these ``numbers``, name to ()."""
        own = dict(numbers)
        lr = own.pop("lr", self.lr)
        if not own:
            return self.program, self.phase, lr
        method = self.program.method.with_values(own)
        hooks: dict[str, Any] = {
            name: hook and MethodType(hook.__func__, method) for name, hook in self.phase.hooks.items()
        }
        phase = dataclasses.replace(self.phase, **hooks)
        return dataclasses.replace(self.program, method=method), phase, lr


def for_all_clients(function: Callable[..., Any], *arguments: Any) -> Any:
    """Apply ``function`` to all clients with `torch.vmap`; the result's first axis is that of the clients.

    Args:
        arguments: nested tensors, all with the client axis first.

    Raises:
        Conflict: a line of a method or a network cannot be run for all clients at once.
    """
    leading = tree_map(lambda value: None if value is None else 0, arguments)
    try:
        return torch.vmap(function, in_dims=leading)(*arguments)
    except RuntimeError as error:
        if not str(error).startswith("vmap: "):
            raise
        library = str(Path(torch.__file__).parent)
        frames = traceback.extract_tb(error.__traceback__)
        *_, last = (frame for frame in frames if not frame.filename.startswith(library))
        raise Conflict(
            f"{last.filename}:{last.lineno}",
            f"the stacked backend cannot run '{last.line}': it trains all clients at once, without values of "
            "tensors (as in if or .item()), shapes that follow from them, or torch's random numbers",
            "use torch.where and the noise of a phase, or the backend loop",
        ) from error
