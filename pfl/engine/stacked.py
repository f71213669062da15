"""The stacked backend: all participants at once, their tensors stacked along a leading client axis.

The fast way on a GPU. Participants are ordered by their number of steps, so that those still training are a
prefix of the stack and nobody is padded to the largest; only a batch that is smaller than the others of its
step is padded, with rows that neither the loss nor batch norm sees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pfl.engine.client import Batch, Client
from pfl.engine.groups import bind
from pfl.engine.local import SGD, Program, Task, Trained
from pfl.engine.method import Phase
from pfl.models._layers import BatchNorm2d

EVALUATION_IMAGES = 8192  # images at once over all stacked models; bounds the memory of an evaluation


class StackedBackend:
    """See `pfl.engine.local.Backend`."""

    def train(self, program: Program, task: Task) -> Trained:
        schedules = task.schedules(program)
        steps = np.array([sum(len(batches) for batches in schedule) for schedule in schedules])
        order = torch.from_numpy(np.argsort(-steps, kind="stable")).to(program.federation.device)
        params = {name: stack[order].clone() for name, stack in task.start.items()}
        start = {name: stack[order] for name, stack in task.start.items()}
        state = {name: stack[order] for name, stack in task.state.items()}
        losses = torch.zeros(len(steps), dtype=torch.float64, device=order.device)
        for i, phase in enumerate(task.phases):
            batches = [schedules[k][i] for k in order.tolist()]
            losses += _train_phase(program, phase, batches, params, start, state)
        inverse = torch.argsort(order)
        mean = losses[inverse] / torch.from_numpy(np.maximum(steps, 1)).to(order.device)
        samples = sum(len(b) for schedule in schedules for batches in schedule for b in batches)
        return Trained({name: stack[inverse] for name, stack in params.items()}, mean, samples)

    @torch.no_grad()
    def evaluate(
        self,
        program: Program,
        tensors: Mapping[str, Tensor],
        state: Mapping[str, Tensor],
        samples: Sequence[np.ndarray],
    ) -> tuple[Tensor, Tensor]:
        federation, net = program.federation, program.net
        net.eval()

        def logits(params: dict[str, Tensor], rows: dict[str, Tensor], x: Tensor) -> Tensor:
            bind(net, params)
            return program.method.logits(Client(net, params, params, rows), x)

        correct = torch.zeros(len(samples), dtype=torch.float64, device=federation.device)
        loss = torch.zeros_like(correct)
        order = np.argsort([-len(indices) for indices in samples], kind="stable")
        widest = max(len(samples[order[0]]), 1)
        for first in range(0, len(order), max(1, EVALUATION_IMAGES // widest)):
            models = torch.from_numpy(order[first : first + max(1, EVALUATION_IMAGES // widest)])
            index, rows = _padded([samples[k] for k in models.tolist()], federation.device)
            at = models.to(federation.device)
            params = {name: stack[at] for name, stack in tensors.items()}
            chosen = {name: stack[at] for name, stack in state.items()}
            for column in range(0, index.shape[1], EVALUATION_IMAGES):
                part = slice(column, column + EVALUATION_IMAGES)
                x, y = federation.batch(index[:, part])
                scores = torch.vmap(logits)(params, chosen, x)
                correct[at] += ((scores.argmax(-1) == y) * rows[:, part]).sum(1).double()
                entropy = F.cross_entropy(scores.flatten(0, 1), y.flatten(), reduction="none").view_as(y)
                loss[at] += (entropy * rows[:, part]).sum(1).double()
        return correct, loss


def _train_phase(
    program: Program,
    phase: Phase,
    batches: list[list[np.ndarray]],
    params: dict[str, Tensor],
    start: Mapping[str, Tensor],
    state: Mapping[str, Tensor],
) -> Tensor:
    """Run one phase on the stacks, in place; return each client's sum of losses (K,)."""
    federation, net = program.federation, program.net
    trained = program.prepare(phase)
    norms = [module for module in net.modules() if isinstance(module, BatchNorm2d) and module.training]

    def loss(weights, others, start, state, x, y, rows):  # type: ignore[no-untyped-def]
        current = {**others, **weights}
        bind(net, current)
        for norm in norms:
            norm.rows = rows
        value = program.method.loss(Client(net, current, start, state, trained), Batch(x, y, rows))
        return value, value.detach()

    gradient = torch.func.grad(loss, has_aux=True)
    weights = [params[name] for name in trained]
    optimiser = SGD(program.config, phase, weights)
    losses = torch.zeros(len(batches), dtype=torch.float64, device=federation.device)
    for step in range(max(map(len, batches))):
        active = sum(step < len(mine) for mine in batches)  # a prefix: the stack is ordered by steps
        index, rows = _padded([mine[step] for mine in batches[:active]], federation.device)
        x, y = federation.batch(index)
        real = None if bool(rows.all()) else rows.to(federation.dtype)

        def first(stacks: Mapping[str, Tensor], n: int = active) -> dict[str, Tensor]:
            return {name: stack[:n] for name, stack in stacks.items()}

        moving = first({name: params[name] for name in trained})
        others = first({name: stack for name, stack in params.items() if name not in moving})
        in_dims = (0, 0, 0, 0, 0, 0, None if real is None else 0)
        gradients, values = torch.vmap(gradient, in_dims=in_dims)(
            moving, others, first(start), first(state), x, y, real
        )
        optimiser.step(list(moving.values()), [gradients[name] for name in trained], active)
        losses[:active] += values
    for norm in norms:
        norm.rows = None
    return losses


def _padded(indices: Sequence[np.ndarray], device: torch.device) -> tuple[Tensor, Tensor]:
    """Index arrays of unequal lengths as (K, longest), padded with index 0, and which entries are real."""
    lengths = np.array([len(index) for index in indices])
    table = np.zeros((len(indices), lengths.max()), dtype=np.int64)
    rows = np.arange(table.shape[1]) < lengths[:, None]
    table[rows] = np.concatenate(indices)
    return torch.from_numpy(table).to(device), torch.from_numpy(rows).to(device)
