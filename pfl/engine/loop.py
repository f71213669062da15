"""The loop backend: one client after another. The reference, and the fast way on a CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pfl.engine.client import Batch, Client
from pfl.engine.groups import bind
from pfl.engine.local import SGD, Program, Task, Trained

EVALUATION_BATCH = 512  # images at once; bounds the memory of an evaluation


class LoopBackend:
    """See `pfl.engine.local.Backend`."""

    def train(self, program: Program, task: Task) -> Trained:
        tensors = {name: stack.clone() for name, stack in task.start.items()}
        losses = torch.zeros(len(task.clients), dtype=torch.float64, device=program.federation.device)
        samples = 0
        for k, schedule in enumerate(task.schedules(program)):
            losses[k] = self._train_one(program, task, k, schedule, {n: t[k] for n, t in tensors.items()})
            samples += sum(len(batch) for batches in schedule for batch in batches)
        return Trained(tensors, losses, samples)

    def _train_one(
        self,
        program: Program,
        task: Task,
        k: int,
        schedule: list[list[np.ndarray]],
        params: dict[str, Tensor],
    ) -> Tensor:
        """Train participant ``k`` in place and return its mean loss."""
        federation, method, net = program.federation, program.method, program.net
        start = {name: stack[k] for name, stack in task.start.items()}
        state = {name: stack[k] for name, stack in task.state.items()}
        total = torch.zeros((), dtype=torch.float64, device=federation.device)
        steps = 0
        for phase, batches in zip(task.phases, schedule, strict=True):
            trained = program.prepare(phase)
            leaves = {name: params[name].detach().requires_grad_() for name in trained}
            current = {**params, **leaves}
            bind(net, current)
            client = Client(net, current, start, state, trained)
            weights = list(leaves.values())
            optimiser = SGD(program.config, phase, weights)
            for index in batches:
                batch = Batch(*federation.batch(torch.from_numpy(index).to(federation.device)))
                loss = method.loss(client, batch)
                gradients = torch.autograd.grad(loss, weights, allow_unused=True, materialize_grads=True)
                optimiser.step(weights, gradients)
                total += loss.detach()
            steps += len(batches)
        return total / max(steps, 1)

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
        correct = torch.zeros(len(samples), dtype=torch.float64, device=federation.device)
        loss = torch.zeros_like(correct)
        for k, indices in enumerate(samples):
            params = {name: stack[k] for name, stack in tensors.items()}
            bind(net, params)
            client = Client(net, params, params, {name: stack[k] for name, stack in state.items()})
            for i in range(0, len(indices), EVALUATION_BATCH):
                index = torch.from_numpy(indices[i : i + EVALUATION_BATCH]).to(federation.device)
                x, y = federation.batch(index)
                logits = program.method.logits(client, x)
                correct[k] += (logits.argmax(-1) == y).sum()
                loss[k] += F.cross_entropy(logits, y, reduction="sum")
        return correct, loss
