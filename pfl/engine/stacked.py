"""The stacked backend: all clients at once, their tensors stacked along a leading axis.

This is the fast backend on a GPU. Clients are ordered by their number of steps, so that the clients still
training are a prefix of the stack, and none is padded to the longest. Only batches are padded, to the largest
of the round, with rows that the loss and batch norm ignore. Clients of several configurations share a stack,
each with its own learning rate and hyperparameters. On a GPU, a step with the same number of clients as an
earlier one is replayed (`pfl.engine.graphs`). Clients that do not fit into memory at once are stacked in
chunks; results are unaffected up to rounding.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from pfl.core import memory
from pfl.engine.client import Batch, Client
from pfl.engine.graphs import Capture
from pfl.engine.groups import bind
from pfl.engine.local_training import Program, Statistic, Task, Trained
from pfl.engine.stack import PerClientHyperparameters, Stack, Stacks, for_all_clients
from pfl.engine.state import State, rows
from pfl.engine.transfer import on_device

log = logging.getLogger(__name__)

T = TypeVar("T")

MOST_RECORDED = 4
"""Number of stacks whose recorded steps are kept, for training and other computations of clients."""

IMAGES = 8192  # at once in an evaluation
IMAGES_ON_GPU = 65536  # with fewer, the host is the bottleneck


class StackedBackend:
    """See `pfl.engine.local_training.Backend`.

    Args:
        captures: creates the recorder of a stack's steps, which are replayed in later rounds. `None` means
            that nothing is recorded.

    Attributes:
        clients: maximum number of clients trained at once; `None` means all. Halved if memory runs out.
        images: maximum number of images evaluated at once, over all models. Halved if memory runs out.
    """

    processes = 1

    def __init__(self, captures: Callable[[], Capture] | None = None) -> None:
        self.clients: int | None = None
        self.images = IMAGES_ON_GPU if captures else IMAGES
        self._captures = captures
        self._recorded: dict[Hashable, Stack] = {}

    def train(self, task: Task) -> Trained:
        count = len(task.clients)

        def in_chunks(size: int) -> Trained:
            if size < asked:
                self._recorded.clear()  # recorded for more clients than fit into memory
                memory.release()
            if size == count:
                return self._train(task)
            starts = range(0, count, size)
            return Trained.joined([self._train(task.part(slice(i, i + size))) for i in starts])

        asked = min(self.clients or count, count)
        trained, sufficed = _halving(in_chunks, asked, "clients")
        if sufficed < asked:
            self.clients = sufficed
        return trained

    def _train(self, task: Task) -> Trained:
        """Train all clients of ``task`` at once."""
        schedules = task.schedules()
        steps = np.array([sum(map(len, schedule)) for schedule in schedules])
        order = np.argsort(-steps, kind="stable")
        numbers = [
            PerClientHyperparameters(
                [task.programs[k] for k in order],
                [task.phases[k][i] for k in order],
                [task.lr(k, task.phases[k][i]) for k in order],
            )
            for i in range(len(task.phases[0]))
        ]
        stack = self._stack(task, numbers)
        stack.load(task, order, numbers)
        samples = 0
        for i, runner in enumerate(stack.runners):
            plans = [schedules[k][i] for k in order]
            samples += runner.run(plans)
        return stack.trained(order, steps, samples)

    def _stack(self, task: Task, numbers: Sequence[PerClientHyperparameters]) -> Stack:
        """The stack in which ``task`` is trained: the previous one if steps are recorded, else a new one."""
        if self._captures is None or not task.repeats:
            return Stack(task, numbers, None)
        dtypes = tuple(stack.dtype for stack in tree_leaves(task.state))
        key = (len(task.clients), task.structure, dtypes, *(own.common for own in numbers))
        if key not in self._recorded:
            if len(self._recorded) == MOST_RECORDED:
                del self._recorded[next(iter(self._recorded))]
                memory.release()
            self._recorded[key] = Stack(task, numbers, self._captures())
        return self._recorded[key]

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
        federation, net = program.federation, program.net
        net.eval()
        longest = max(map(len, samples), default=0)
        order = np.argsort([-len(indices) for indices in samples], kind="stable")

        def sums_of(params: Stacks, state: State, x: Tensor, y: Tensor, real: Tensor) -> Stacks:
            bind(net, params)
            return statistic(Client(net, params, params, state), Batch(x, y, real))

        def with_images(size: int) -> dict[str, Tensor]:
            """The sums, with at most ``size`` images at once."""
            sums: dict[str, Tensor] = {}
            together = max(1, size // max(len(samples[order[0]]), 1))
            for first in range(0, len(order), together):
                models = order[first : first + together]
                index, real = _padded([samples[k] for k in models], federation.device)
                at = on_device(models, federation.device)
                for column in range(0, index.shape[1], size):
                    part = slice(column, column + size)
                    x, y = federation.batch(index[:, part])
                    weights = real[:, part].to(federation.dtype)
                    totals = for_all_clients(sums_of, rows(tensors, at), rows(state, at), x, y, weights)
                    for name, value in totals.items():
                        if name not in sums:
                            shape = (longest, *value.shape[2:]) if each else value.shape[1:]
                            sums[name] = value.new_zeros((len(samples), *shape), dtype=torch.float64)
                        if each:
                            kept = real[:, part].view(*value.shape[:2], *[1] * (value.dim() - 2))
                            columns = slice(column, column + value.shape[1])
                            sums[name][at, columns] += value.masked_fill(~kept, 0)
                        else:
                            sums[name][at] += value
            return sums

        sums, self.images = _halving(with_images, self.images, "images")
        return sums


def _halving(run: Callable[[int], T], size: int, what: str) -> tuple[T, int]:
    """The result of ``run(size)``, with the size halved until memory suffices, and that size."""
    while True:
        try:
            return run(size), size
        except Exception as error:
            if size == 1 or not memory.is_out_of_memory(error):
                raise
        # Outside the handler, because the traceback keeps the tensors that did not fit alive.
        size //= 2
        log.warning("out of memory: continuing with %d %s at once", size, what)
        memory.release()


def _padded(indices: Sequence[np.ndarray], device: torch.device) -> tuple[Tensor, Tensor]:
    """Index arrays of unequal lengths as (K, longest), padded with the first, and which entries are real."""
    lengths = np.array([len(index) for index in indices])
    first = np.array([index[0] if len(index) else 0 for index in indices], dtype=np.int64)
    table = np.repeat(first[:, None], lengths.max(), axis=1)
    rows = np.arange(table.shape[1]) < lengths[:, None]
    table[rows] = np.concatenate(indices)
    return on_device(table, device), on_device(rows, device)
