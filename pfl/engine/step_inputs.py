"""Inputs of the steps of a phase: tables on the device, from which each step takes the next row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pfl.engine.local_training import Program, StepBatches
from pfl.engine.transfer import on_device

Inputs = list[tuple[Tensor, Tensor, Tensor | None, Tensor | None]]
"""For each batch of a step, the fields of `pfl.engine.client.Batch` with a leading client axis, and pooled
indices in place of images and labels."""


class Tables(NamedTuple):
    """T steps of K clients, by decreasing number of steps; batches are padded to the largest, B.

    Attributes:
        indices: (T, batches, K, B) pooled indices. Padding repeats a sample of the client, whose loss and
            gradient are finite if the client's are; times 0, an infinite one would be NaN.
        real: (T, batches, K, B), false for padding.
        noise: (T, K, ...), or None if the phase requests none.
        keys: (T, K), or None if no random numbers depend on them.
    """

    indices: np.ndarray
    real: np.ndarray
    noise: np.ndarray | None
    keys: np.ndarray | None

    @staticmethod
    def of(program: Program, plans: Sequence[Sequence[StepBatches]], width: int = 0) -> Tables:
        """The tables of each client's steps; ``width`` is the minimum B."""
        breadth = max(len(mine[0].batches) if mine else 0 for mine in plans)
        lengths = np.zeros((max(map(len, plans)), breadth, len(plans)), dtype=np.int64)
        for k, mine in enumerate(plans):
            if mine:
                lengths[: len(mine), :, k] = [list(map(len, plan.batches)) for plan in mine]
        real = np.arange(max(width, lengths.max(initial=0))) < lengths[..., None]
        indices = np.zeros(real.shape, dtype=np.int64)
        for k, mine in enumerate(plans):
            if mine:
                drawn = [batch for plan in mine for batch in plan.batches]
                indices[:, :, k] = drawn[0][0]
                indices[:, :, k][real[:, :, k]] = np.concatenate(drawn)
        return Tables(
            indices,
            real,
            _by_step([[plan.noise for plan in mine] for mine in plans]),
            _by_step([[plan.key for plan in mine] for mine in plans]) if program.keyed else None,
        )

    @property
    def active(self) -> list[int]:
        """The number of clients in each step, a prefix of all."""
        return self.real[:, 0, :, 0].sum(1).tolist() if self.real.size else []

    @property
    def samples(self) -> int:
        """The number of samples over all steps."""
        return int(self.real.sum())


def _by_step(values: list[list[Any]]) -> np.ndarray | None:
    """(T, K, ...), zeros after a client's last step; None if there are no values."""
    first = next((value for mine in values for value in mine), None)
    if first is None:
        return None
    table = np.zeros((max(map(len, values)), len(values), *np.shape(first)), dtype=np.asarray(first).dtype)
    for k, mine in enumerate(values):
        if mine:
            table[: len(mine), k] = mine
    return table


class StepInputs:
    """Tables in memory that is not reallocated, as recorded steps require, and the index of the next row.

    The index is also on the device, so the host copies nothing between two steps.

    Args:
        tables: those of the first run.
        steps: maximum number of steps of a later run.
    """

    def __init__(self, tables: Tables, steps: int, program: Program):
        device, dtype = program.federation.device, program.federation.dtype

        def room(table: np.ndarray | None, kind: torch.dtype) -> Tensor | None:
            return None if table is None else torch.zeros(steps, *table.shape[1:], dtype=kind, device=device)

        self._dtypes = (torch.int64, dtype, dtype, torch.int64)
        self._tables = [room(table, kind) for table, kind in zip(tables, self._dtypes, strict=True)]
        self._next = torch.zeros(1, dtype=torch.int64, device=device)

    def fit(self, tables: Tables) -> bool:
        """Whether ``tables`` fit."""
        assert self._tables[0] is not None
        steps, *shape = tables.indices.shape
        return steps <= len(self._tables[0]) and list(self._tables[0].shape[1:]) == shape

    def put(self, tables: Tables) -> None:
        """Load ``tables`` and start from the first row."""
        for mine, new, dtype in zip(self._tables, tables, self._dtypes, strict=True):
            if mine is not None and new is not None:
                mine[: len(new)] = on_device(new, mine.device, dtype)
        self._next.zero_()

    def take(self, active: int) -> Inputs:
        """The next step's inputs for the first ``active`` clients."""
        rows = (None if table is None else table.index_select(0, self._next)[0] for table in self._tables)
        index, real, noise, keys = rows
        self._next += 1
        assert index is not None and real is not None
        others = [None if row is None else row[:active] for row in (noise, keys)]
        return [(i[:active], r[:active], *others) for i, r in zip(index, real, strict=True)]
