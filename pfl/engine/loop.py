"""The loop backend: one client after another. It is the reference, and the fast backend on a CPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence, Set

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map, tree_map_

from pfl.engine.client import Batch, Client, Loss, scalar
from pfl.engine.groups import bind
from pfl.engine.local_training import SGD, Program, Statistic, StepBatches, Task, Trained
from pfl.engine.method import Phase
from pfl.engine.phase_check import check_gradient, check_step
from pfl.engine.state import State, apart, memory, rows
from pfl.engine.workers import Workers

COLLECTION_BATCH = 128  # images at once; 256 are 8 % faster with LeNet, but take 10 to 20 MB more per worker


class LoopBackend:
    """See `pfl.engine.local_training.Backend`.

    Args:
        workers: number of processes that share the clients of a call; results do not depend on it.
    """

    def __init__(self, workers: int = 1):
        self.processes = workers
        self.workers = Workers(workers)

    def train(self, task: Task) -> Trained:
        by_tap = task.programs[0].by_tap

        def trained(k: int) -> Trained:
            return _train(task, k, by_tap)

        costs = [len(samples) for samples in task.samples]
        return Trained.joined(self.workers.map(f"train {task.purpose}", trained, costs), _stacked)

    @torch.no_grad()
    def collect(
        self,
        program: Program,
        statistic: Statistic,
        tensors: Mapping[str, Tensor],
        state: State,
        samples: Sequence[np.ndarray],
        each: bool = False,
    ) -> dict[str, Tensor]:
        program.single_client()
        program.net.eval()
        longest = max(map(len, samples), default=0)

        def collected(k: int) -> dict[str, Tensor]:
            """The sums of the k-th model, (...) each, or (M, ...) with ``each``."""
            params = rows(tensors, k)
            bind(program.net, params)
            client = Client(program.net, params, params, rows(state, k))
            sums: dict[str, Tensor] = {}
            for i in range(0, len(samples[k]), COLLECTION_BATCH):
                index = torch.from_numpy(samples[k][i : i + COLLECTION_BATCH])
                batch = Batch(*program.federation.batch(index.to(program.federation.device)))
                for name, value in statistic(client, batch).items():
                    if name not in sums:
                        shape = (longest, *value.shape[1:]) if each else value.shape
                        sums[name] = value.new_zeros(shape, dtype=torch.float64)
                    if each:
                        sums[name][i : i + len(index)] += value
                    else:
                        sums[name] += value
            return sums

        of_models = self.workers.map("collect", collected, [len(indices) for indices in samples])
        names = next((sums for sums in of_models if sums), {})
        return {
            name: torch.stack([sums.get(name, torch.zeros_like(like)) for sums in of_models])
            for name, like in names.items()
        }


def _stacked(rows: Sequence[Tensor]) -> Tensor:
    """Stack rows to (K, *shape), contiguous whatever their order in memory."""
    return torch.stack([*rows]).contiguous()


def _train(task: Task, k: int, by_tap: Set[str]) -> Trained:
    """Train a task's k-th client, on copies of its tensors; the result is without the axis of the clients.

    Args:
        by_tap: names of weights to store with the channels last in memory.
    """
    program, phases, schedule = task.programs[k], task.phases[k], task.schedule(k)
    program.single_client()
    start = rows(task.start, k)
    params = {
        name: _stored_by_tap(row) if name in by_tap else row.clone(memory_format=torch.contiguous_format)
        for name, row in start.items()
    }
    state = tree_map(lambda stack: stack[k].clone(memory_format=torch.contiguous_format), task.state)
    loss = torch.zeros((), dtype=torch.float64, device=program.federation.device)
    for phase, plans in zip(phases, schedule, strict=True):
        run = _run_steps if phase.step or phase.gradient else _run_sgd
        loss += run(program, phase, task.lr(k, phase), plans, Client(program.net, params, start, state))
    return Trained(
        params,
        state,
        loss / max(sum(map(len, schedule)), 1),
        sum(
            phase.repeat * len(batch)
            for phase, plans in zip(phases, schedule, strict=True)
            for plan in plans
            for batch in plan.batches
        ),
    )


def _stored_by_tap(weight: Tensor) -> Tensor:
    """A copy of a convolution's weight (outputs, channels, side, side) with the channels last in memory."""
    return weight.permute(0, 2, 3, 1).clone(memory_format=torch.contiguous_format).permute(0, 3, 1, 2)


class _SingleClient(Client):
    """A client outside a stack; its gradients use autograd, which takes half the time of torch.func."""

    def gradient(
        self, loss: Loss, batch: Batch, at: Mapping[str, Tensor] | None = None
    ) -> tuple[dict[str, Tensor], Tensor]:
        leaves = {name: weight.detach().requires_grad_() for name, weight in (at or self.weights).items()}
        moved = dataclasses.replace(self, params={**self.params, **leaves})
        moved.attach(batch)
        with torch.enable_grad():
            value = scalar(loss, moved, batch)
        gradients = torch.autograd.grad(
            value, list(leaves.values()), allow_unused=True, materialize_grads=True
        )
        bind(self.net, self.params)
        return dict(zip(leaves, gradients, strict=True)), value.detach()


def _batch(program: Program, index: np.ndarray, plan: StepBatches, number: int = 0) -> Batch:
    device = program.federation.device
    key = torch.tensor(plan.key, device=device) if program.keyed else None
    x, y = program.batch(torch.from_numpy(index).to(device), key, number)
    noise = (
        None if plan.noise is None else torch.from_numpy(plan.noise).to(x.device, program.federation.dtype)
    )
    return Batch(x, y, None, noise, key)


def _run_sgd(program: Program, phase: Phase, lr: float, plans: list[StepBatches], client: Client) -> Tensor:
    """SGD on the client's parameters, in place; returns the sum of the losses of its steps."""
    trained = program.prepare(phase)
    # The leaves share the memory of the parameters, so that SGD updates both.
    leaves = {name: client.params[name].detach().requires_grad_() for name in trained}
    client = program.client({**client.params, **leaves}, client.start, client.state, trained)
    bind(client.net, client.params)
    weights = list(leaves.values())
    optimiser = SGD(program.config, lr, weights)
    loss_of = program.loss(phase)
    total = torch.zeros((), dtype=torch.float64, device=program.federation.device)
    for plan in plans:
        batch = _batch(program, plan.batches[0], plan)
        if program.dropouts:
            client.attach(batch)
        for _ in range(phase.repeat):
            loss = scalar(loss_of, client, batch)
            gradients = torch.autograd.grad(loss, weights, allow_unused=True, materialize_grads=True)
            optimiser.step(weights, gradients)
        total += loss.detach()
    return total


@torch.no_grad()
def _run_steps(program: Program, phase: Phase, lr: float, plans: list[StepBatches], client: Client) -> Tensor:
    """The phase's custom steps, or SGD with its custom gradients, in place; returns the sum of the losses."""
    trained = program.prepare(phase)
    client = program.client(client.params, client.start, client.state, trained, _SingleClient)
    optimiser = SGD(program.config, lr, list(client.weights.values()))
    written = memory((dict(client.params), client.state))
    total = torch.zeros((), dtype=torch.float64, device=program.federation.device)
    for plan in plans:
        batches = tuple(_batch(program, index, plan, j) for j, index in enumerate(plan.batches))
        for _ in range(phase.repeat):
            client.attach(batches[0])
            if phase.step is None:
                assert phase.gradient is not None
                returned = phase.gradient(client, batches)
                check_gradient(program.method, returned, client)
                direction, loss = apart(returned, written)
                optimiser.step(list(client.weights.values()), [direction[name] for name in trained])
            else:
                step = phase.step(client, batches, lr)
                check_step(program.method, step, client)
                params, state, loss = apart((step.params, step.state, step.loss), written)
                for name, value in params.items():
                    client.params[name].copy_(value)
                for name, value in state.items():
                    tree_map_(torch.Tensor.copy_, client.state[name], value)
        total += loss
    return total
